"""A finished dataset and an unfinished one: what may change before the same command, and what may not."""

import logging
import os
from pathlib import Path

import pytest

from dlrm_app.errors import ConfigError, DataError, DlrmError, Problem
from dlrm_app.preprocessing.stages import Stages
from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.running import content, run
from tests.refusals import find_problem, is_like, refused

HASH = ("encoding.num_embeddings=100",)
VOCAB = ("encoding=vocab", "encoding.min_count=1")


@pytest.fixture(autouse=True)
def _log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.tsv").write_bytes(make_clicks(300))


def lines_of_new_values(count: int) -> bytes:
    """Lines in which only cat_0 has the same value twice."""
    line = b"1" + b"\t" * 14 + b"0000000a" + b"\t%08x" * 25 + b"\n"
    return b"".join(line % tuple(range(number * 25, number * 25 + 25)) for number in range(count))


def flip_a_label() -> None:
    text, status = Path("log.tsv").read_bytes(), Path("log.tsv").stat()
    Path("log.tsv").write_bytes((b"0" if text[:1] == b"1" else b"1") + text[1:])
    os.utime("log.tsv", ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))


def add_a_line() -> None:
    with Path("log.tsv").open("ab") as file:
        file.write(make_clicks(1))


@pytest.mark.parametrize("change", [flip_a_label, add_a_line])
def test_a_finished_dataset_of_input_that_has_changed_is_refused(change: object) -> None:
    run(Path("k"), "input.train=log.tsv", *HASH)
    before = content(Path("k"))
    assert callable(change)
    change()
    with pytest.raises(ConfigError) as caught:
        run(Path("k"), "input.train=log.tsv", *HASH)
    assert find_problem(caught.value, "log.tsv", "has changed...")
    assert find_problem(caught.value, "output=k", "holds a finished dataset of another input")
    assert content(Path("k")) == before


@pytest.mark.parametrize("lost", ["train/part-00000.parquet", "vocab/cat_3.parquet"])
def test_a_finished_dataset_that_lacks_a_file_is_refused(lost: str) -> None:
    given = ("input.train=log.tsv", *VOCAB)
    run(Path("k"), *given)
    run(Path("k"), *given)
    Path("k", lost).unlink()
    with pytest.raises(DataError) as caught:
        run(Path("k"), *given)
    assert lost in str(caught.value)
    assert "delete k and run the same command" in str(caught.value)


def test_a_split_of_no_line_is_refused_and_may_be_enlarged() -> None:
    given = ("input.train=log.tsv", *HASH)
    with refused(
        ConfigError,
        "split.val=0.003",
        "of the 300 lines of input.train is less than one, so the val split has no rows",
    ):
        run(Path("k"), *given, "split.val=0.003")
    assert {path.name for path in Path("k/.work").iterdir() if path.is_dir()} == {"lines"}
    assert run(Path("k"), *given, "split.val=0.0067").splits["val"].rows == 2


def test_files_without_lines_are_refused_before_anything_is_written() -> None:
    Path("empty.tsv").write_bytes(b"")
    with refused(ConfigError, "input.val", "has no line in its files"):
        run(Path("k"), "input.train=log.tsv", "input.val=empty.tsv", *HASH)
    assert not Path("k").exists()
    run(Path("k"), "input.train=[log.tsv,empty.tsv]", *HASH)


def test_the_cures_for_too_large_a_vocabulary_are_accepted() -> None:
    Path("log.tsv").write_bytes(lines_of_new_values(3000))
    given = ("input.train=log.tsv", *VOCAB)
    with refused(
        ConfigError,
        "the vocabularies",
        "hold 75,001 values or more, which take 1.3 MiB of memory, more than memory_gib...",
    ):
        run(Path("k"), *given, "memory_gib=0.001", "threads=1")
    limited = run(Path("k"), *given, "encoding.top_k=5", "memory_gib=0.001")
    assert content(Path("k")) == content_of_one_run("whole", *given, "encoding.top_k=5")
    assert limited.sparse[2].num_embeddings == 7
    with refused(ConfigError, "encoding.top_k", "was 5, is 6"):
        run(Path("k"), *given, "encoding.top_k=6")


def content_of_one_run(name: str, *given: str) -> dict[str, bytes]:
    run(Path(name), *given)
    return content(Path(name))


def test_any_other_change_of_an_unfinished_dataset_is_refused() -> None:
    Path("log.tsv").write_bytes(make_clicks(300, bad_every=10))
    given = ("input.train=log.tsv", *VOCAB)
    with pytest.raises(DataError):
        run(Path("k"), *given)
    for other in ("encoding.min_count=2", "split.val=0.1", "seed=3", "dense.transform=log3"):
        with refused(ConfigError, other.partition("=")[0], "was ..., is ..."):
            run(Path("k"), *given, other)
    with refused(DlrmError, "rejects.max_fraction=...", "allows fewer malformed lines than 30 of 300"):
        run(Path("k"), *given)
    for damage in ("{", "[]"):
        Path("k/.work/plan.json").write_text(damage)
        with refused(DataError, "k/.work/plan.json", "is damaged (...)", "delete k and start again"):
            run(Path("k"), *given)


def test_a_known_encoding_comes_with_its_transform(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run(Path("old"), "input.train=log.tsv", *VOCAB, "dense.transform=log3")
    given = ("input.train=log.tsv", "encoding=from_dataset", "encoding.path=old")
    with caplog.at_level(logging.WARNING):
        manifest = run(Path("k"), *given, "dataset=criteo_1tb")
    assert "dense.transform=log1p is not used: " in caplog.text
    assert "made from dataset=criteo_kaggle, this is dataset=criteo_1tb" in caplog.text
    assert manifest.config["dense"]["transform"] == "log3"
    assert {column.transform["kind"] for column in manifest.dense} == {"log3"}
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        run(Path("again"), *given, "dense.transform=log3")
    assert caplog.text == ""


def test_features_whose_values_are_all_rare_are_named(caplog: pytest.LogCaptureFixture) -> None:
    Path("log.tsv").write_bytes(lines_of_new_values(100))
    with caplog.at_level(logging.WARNING):
        run(Path("k"), "input.train=log.tsv", "encoding=vocab", "encoding.min_count=2")
    assert "no value of cat_1, cat_2, " in caplog.text
    assert "encoding.min_count=2" in caplog.text
    assert "cat_0" not in caplog.text


def test_a_first_try_of_which_nothing_can_be_kept_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("shop.csv").write_text("".join(f"{n % 2},u{n}\n" for n in range(300)))
    columns = "dataset.columns=[{name: clicked, role: label}, {name: user, role: sparse, kind: KIND}]"
    given = ["input.train=shop.csv", "dense.transform=none", "dataset.name=shop", 'dataset.delimiter=","']
    with refused(ConfigError, "dataset=shop", "does not describe shop.csv, none of its first 300 lines fits"):
        run(Path("out"), *given, columns.replace("KIND", "integer"))
    assert not Path("out").exists()
    with monkeypatch.context() as patch:
        patch.setattr(Stages, "run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(Path("out"), *given, columns.replace("KIND", "string"), "seed=1")
    manifest = run(Path("out"), *given, columns.replace("KIND", "string"))
    assert manifest.splits["train"].rows == 300
    assert not Path("out/.work").exists()


def test_settings_that_differ_are_named_in_a_few_words() -> None:
    run(Path("out"), "input.train=log.tsv")
    columns = "[{name: clicked, role: label}, {name: user, role: sparse, kind: string}]"
    with pytest.raises(ConfigError) as caught:
        run(Path("out"), "input.train=log.tsv", f"dataset.columns={columns}", "dataset.name=shop", "seed=1")
    (columns, *differences), hint = caught.value.problems[:-1], caught.value.problems[-1]
    assert is_like(columns, "dataset.columns", 'was [{"name"...')
    assert len(columns.rule) < 160
    assert differences == [
        Problem("dataset.name", 'was "criteo_kaggle", is "shop"'),
        Problem("seed", "was 0, is 1"),
    ]
    assert "another output=" in hint.cure
