"""Everything that can be wrong with input, and what the user is told."""

import fcntl
import gzip
import os
from pathlib import Path

import pytest

from dlrm_app.errors import ConfigError, DataError, DlrmError
from dlrm_app.preprocessing import preprocess
from tests.preprocessing.running import rejects_of, run
from tests.refusals import find_problem, is_like, refused

GOOD = (
    b"1\t"
    + b"\t".join(b"%d" % n for n in range(13))
    + b"\t"
    + b"\t".join(b"%08x" % n for n in range(26))
    + b"\n"
)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ("input.train=nothing.tsv", "input.train=nothing.tsv does not exist"),
        ("input.train=nothing*.tsv", "input.train=nothing*.tsv has no file to read"),
        ("input.train=folder", "input.train=folder has no file to read"),
        ("input.train=[good.tsv,good.tsv]", "are the same file"),
        ("+input.train=[]", "input.train must be a file, a glob or a list of them"),
        ("encoding.num_embeddings=[5,6]", "encoding.num_embeddings has 2 numbers, the dataset has 26"),
        ("encoding.num_embeddings=1", "must be a whole number from 2 to 2147483647, got 1"),
        ("output=good.tsv", "output=good.tsv is a file: give the name of a folder"),
        ("output=folder", "output=folder exists and is not a dataset folder"),
    ],
)
def test_input_that_cannot_work_is_refused_with_the_cure(tmp_path: Path, given: str, part: str) -> None:
    (tmp_path / "good.tsv").write_bytes(GOOD)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "precious").write_bytes(b"")
    arguments = {
        "input.train": "input.train=good.tsv",
        "output": "output=k",
        given.split("=")[0].lstrip("+"): given,
    }
    output = Path(arguments.pop("output").split("=")[1])
    with pytest.raises(DlrmError) as caught:
        run(output, *arguments.values())
    assert part in str(caught.value)
    assert (tmp_path / "good.tsv").read_bytes() == GOOD


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.tsv").write_bytes(GOOD)
    (tmp_path / "secret.tsv").chmod(0)
    with refused(DlrmError, "input.train=secret.tsv", "cannot be read (Permission denied)"):
        run(Path("k"), "input.train=secret.tsv")


BAD_LINES = {
    "blank line": b"\n",
    "carriage return alone is blank": b"\r\n",
    "39 columns, expected 40": GOOD.replace(b"\t0", b"", 1),
    "41 columns, expected 40": GOOD.replace(b"\n", b"\t\n"),
    "label is '2', must be 0 or 1": b"2" + GOOD[1:],
    "int_1 is '1.5', must be a whole number": GOOD.replace(b"\t1\t", b"\t1.5\t", 1),
    "int_2 is '99999999999999999999', must be a whole number within": GOOD.replace(
        b"\t2\t", b"\t99999999999999999999\t", 1
    ),
    r"int_3 is '3\x00', must be a whole number": GOOD.replace(b"\t3\t", b"\t3\0\t", 1),
    "cat_0 is '0000000g', must be 1 to 8 hex digits": GOOD.replace(b"00000000", b"0000000g"),
    r"cat_1 is '0000\\xff001', must be 1 to 8 hex digits": GOOD.replace(b"00000001", b"0000\xff001"),
    "longer than 1,048,576 bytes": b"1\t" + b"7" * (10 << 20) + b"\n",
}


@pytest.mark.parametrize("is_gzip", [False, True])
def test_every_malformed_line_is_kept_with_file_line_and_reason(tmp_path: Path, is_gzip: bool) -> None:
    text = GOOD + b"".join(line + GOOD for line in BAD_LINES.values())
    name = "log.tsv.gz" if is_gzip else "log.tsv"
    (tmp_path / name).write_bytes(gzip.compress(text) if is_gzip else text)
    given = [f"input.train={name}", "layout.unit_mib=2"]
    with pytest.raises(DataError) as caught:
        run(Path("k"), *given)
    assert find_problem(
        caught.value, "rejects.max_fraction=0.001", "allows fewer malformed lines than 11 of 2..."
    )
    assert find_problem(caught.value, f"{name}:2", "is malformed: blank line")
    manifest = run(Path("k"), *given, "rejects.max_fraction=0.5")
    rejects = rejects_of(Path("k"))
    assert [entry["line"] for entry in rejects] == list(range(2, 24, 2))
    for entry, reason in zip(rejects, BAD_LINES, strict=True):
        assert entry["file"] == name
        assert ("blank line" if "blank" in reason else reason) in entry["reason"]
        assert len(entry["excerpt"]) < 1000
    assert "3\0" in rejects[7]["excerpt"]
    assert (manifest.splits["train"].rows, manifest.splits["train"].rejects) == (12, 11)


def test_a_second_run_on_the_same_output_waits_its_turn(tmp_path: Path) -> None:
    (tmp_path / "log.tsv").write_bytes(GOOD)
    (tmp_path / "k/.work").mkdir(parents=True)
    with (tmp_path / "k/.work/lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with refused(DlrmError, "", "another dlrm-preprocess is working on output=k: wait for it or end it"):
            run(Path("k"), "input.train=log.tsv")


def test_input_that_changes_while_it_is_read_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log.tsv").write_bytes(GOOD * 3)

    def add_a_line() -> None:
        with (tmp_path / "log.tsv").open("ab") as file:
            file.write(GOOD)

    look = preprocess.with_file_specs
    monkeypatch.setattr(preprocess, "with_file_specs", lambda request: (look(request), add_a_line())[0])
    with refused(DataError, "log.tsv", "changed while it was being read (795 bytes before, 1,060 now)"):
        run(Path("k"), "input.train=log.tsv")


@pytest.mark.parametrize(
    ("override", "key", "rule"),
    [
        ("encoding.num_embeddings=many", "encoding.num_embeddings", "must be a whole number..."),
        ("multi_hot.sizes=0", "multi_hot.sizes", "must be a whole number..."),
        ("dense.bucket_columns=[null]", "dense.bucket_columns", "names None"),
        ("dense.bucket_columns=[int_0,int_0]", "dense.bucket_columns", "names 'int_0' twice"),
        ("dense.target_columns=[int_0]", "dense.target_columns", "names 'int_0'"),
        ("dense.target_columns=cat_99", "dense.target_columns", "names 'cat_99'"),
        ("dense.target_columns=[cat_1,cat_1]", "dense.target_columns", "names 'cat_1' twice"),
        ("dense.target_columns=[{}]", "dense.target_columns", "names {}"),
        ("layout.unit_mib=1000000000000", "layout.unit_mib", "must be at least 1 and at most ..."),
    ],
)
def test_a_value_that_no_column_can_have_is_one_problem(
    tmp_path: Path, override: str, key: str, rule: str
) -> None:
    (tmp_path / "log.tsv").write_bytes(GOOD * 3)
    with pytest.raises(ConfigError) as caught:
        run(Path("k"), "input.train=log.tsv", override)
    (problem,) = caught.value.problems
    assert is_like(problem, key, rule), problem


def test_target_columns_need_clicks_and_memory(tmp_path: Path) -> None:
    (tmp_path / "log.tsv").write_bytes(GOOD * 3)
    with refused(ConfigError, "dense.target_columns", "needs the clicks of training rows"):
        run(Path("k"), "input.test=log.tsv", "dense.target_columns=all")
    with refused(
        ConfigError,
        "dense.target_columns",
        "...counts the clicks of 2,600,000 ids, which takes 992 MiB of memory, more than memory_gib...",
    ):
        run(Path("m"), "input.train=log.tsv", "dense.target_columns=all", "memory_gib=0.5")
    fewer = run(Path("m"), "input.train=log.tsv", "dense.target_columns=[cat_1]", "memory_gib=0.5")
    assert [column.name for column in fewer.dense][13:] == ["cat_1_target"]


@pytest.mark.parametrize("bad", ["", "7\tno\n"])
def test_a_split_dealt_no_rows_is_not_blamed_on_other_lines(tmp_path: Path, bad: str) -> None:
    """A malformed line of the training input is not why the few good ones were all dealt to train."""
    (tmp_path / "log.csv").write_text(
        "click,user\n" + "".join(f"{row % 2},u{row}\n" for row in range(30)) + bad
    )
    (tmp_path / "log.yaml").write_text(
        "name: log\ndelimiter: ','\nheader: true\ncolumns:\n- {name: click, role: label}\n"
        "- {name: user, role: sparse, kind: string}\n"
    )
    given = [f"dataset={tmp_path}/log.yaml", f"input.train={tmp_path}/log.csv", "rejects.max_fraction=0.5"]
    with refused(DataError, "split.val=0.001", "gives the val split no rows: by split.by=content..."):
        run(tmp_path / "out", *given, "split.by=content", "split.val=0.001")
