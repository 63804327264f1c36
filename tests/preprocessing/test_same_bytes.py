"""One command, one dataset: byte for byte the same with any number of threads, compressed or not, resumed or not."""

import gzip
import os
from pathlib import Path

import pytest

from dlrm_app.errors import ConfigError, DataError
from dlrm_app.logs.sources import text_units
from dlrm_app.preprocessing.stages import Stages
from dlrm_app.preprocessing.work import executor, work_folder
from dlrm_app.preprocessing.work.executor import LocalExecutor
from dlrm_app.preprocessing.work.work_folder import WORK
from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.interruptions import run_in_pieces
from tests.preprocessing.running import AUTO, content, run
from tests.refusals import refused

WAYS = {
    "hash": ["encoding.num_embeddings=50", "split.val=0.1", "split.test=0.15"],
    "vocab": ["encoding=vocab", "encoding.min_count=2", "split.test=0.2", "dense.transform=standardize"],
    "block": ["encoding.num_embeddings=50", "shuffle=block", "split.val=0.1"],
    "targets": [
        "encoding=vocab",
        "encoding.min_count=2",
        "dense.target_columns=[cat_0,cat_9,int_1_bucket]",
        "dense.bucket_columns=[int_1]",
        "split.val=0.1",
        "shuffle=full",
        "layout.shuffled_shard_rows=100",
    ],
    "auto": [*AUTO, "encoding.num_embeddings={cat_3: 50}", "split.val=0.1", "split.test=0.15"],
    "multi-hot": ["multi_hot.sizes=3", "dense.bucket_columns=all"],
}


@pytest.fixture(autouse=True)
def _small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of 10,000 bytes, some 50 lines, in place of MiB, so that a small file has many."""
    monkeypatch.setattr("dlrm_app.preprocessing.request.MIB", 10_000)


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    (tmp_path / "a.tsv").write_bytes(make_clicks(180, 1, bad_every=40))
    (tmp_path / "b.tsv").write_bytes(make_clicks(120, 2, bad_every=40)[:-1])
    return tmp_path


def options(way: str) -> list[str]:
    return [*WAYS[way], "layout.unit_mib=1", "layout.row_group_rows=16", "rejects.max_fraction=0.1", "seed=3"]


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.slow] * (way in ("auto", "targets"))) for way in WAYS]
)
def test_threads_and_interruptions_give_the_same_bytes(
    clicks: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [f"input.train={clicks}/?.tsv", *options(way)]
    first = run(clicks / "whole", *given, "threads=1")
    assert sum(split.rows for split in first.splits.values()) == 293
    assert len(first.splits["train"].shards) >= 3
    run(clicks / "four", *given, "threads=4")
    assert content(clicks / "four") == content(clicks / "whole")
    assert run_in_pieces(lambda: run(clicks / "pieces", *given, "threads=1"), monkeypatch, commits=7) >= 1
    assert content(clicks / "pieces") == content(clicks / "whole")


def test_a_finished_dataset_is_left_alone(clicks: Path) -> None:
    given = [f"input.train={clicks}/a.tsv", *options("hash")]
    first = run(clicks / "out", *given)
    before = {path: path.stat().st_mtime_ns for path in (clicks / "out").rglob("*")}
    assert run(clicks / "out", *given, "threads=2") == first
    assert {path: path.stat().st_mtime_ns for path in (clicks / "out").rglob("*")} == before


def interrupted(output: Path, given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that stops after its first unit was encoded."""

    def stop(self: LocalExecutor, work: executor.Pass, feeds: list) -> object:
        for result in original(self, work, feeds):
            yield result
            raise KeyboardInterrupt

    original = LocalExecutor.run
    monkeypatch.setattr(LocalExecutor, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        run(output, *given)
    monkeypatch.setattr(LocalExecutor, "run", original)
    assert (output / WORK).is_dir()


def test_an_unfinished_dataset_that_other_code_began_is_refused(
    clicks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What two versions encode in two ways must not end up in one dataset."""
    given = [f"input.train={clicks}/a.tsv", *options("hash")]
    interrupted(clicks / "out", given, monkeypatch)
    with monkeypatch.context() as other:
        other.setattr(work_folder, "own_code", lambda: "another")
        with refused(
            ConfigError,
            "output=.../out",
            "holds an unfinished dataset of another version of dlrm-preprocess, which may encode...",
        ):
            run(clicks / "out", *given)
    run(clicks / "out", *given)


def test_an_unfinished_dataset_refuses_changed_input(clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [f"input.train={clicks}/?.tsv", *options("hash"), "threads=1"]
    interrupted(clicks / "out", given, monkeypatch)
    with (clicks / "a.tsv").open("ab") as file:
        file.write(b"\n")
    with refused(ConfigError, ".../a.tsv", "has changed, it had 42,662 bytes, it has 42,663 now"):
        run(clicks / "out", *given)
    (clicks / "c.tsv").write_bytes((clicks / "b.tsv").read_bytes()[:1000].rpartition(b"\n")[0])
    with refused(ConfigError, ".../c.tsv", "was not part of the input before"):
        run(clicks / "out", *given)


@pytest.mark.parametrize("way", ["hash", "vocab"])
def test_a_damaged_file_may_be_replaced_and_the_run_goes_on(
    clicks: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_units, "PIECE_BYTES", 2000)  # else the look at first lines finds the damage
    monkeypatch.setattr(text_units, "BEGINNING_BYTES", 2000)
    for name in "ab":
        (clicks / f"{name}.tsv.gz").write_bytes(gzip.compress((clicks / f"{name}.tsv").read_bytes()))
    given = [f"input.train={clicks}/?.tsv.gz", *options(way), "threads=1"]
    run(clicks / "whole", *given)
    good = (clicks / "b.tsv.gz").read_bytes()
    modified_ns = (clicks / "b.tsv.gz").stat().st_mtime_ns
    (clicks / "b.tsv.gz").write_bytes(good[: len(good) // 2])
    with refused(DataError, ".../b.tsv.gz", "is cut short, or other bytes follow its gzip data"):
        run(clicks / "mended", *given)
    finished = {int(path.name.split("-")[0]) for path in (clicks / "mended" / WORK).glob("*/*.json")}
    assert finished == {0}
    (clicks / "b.tsv.gz").write_bytes(good)
    os.utime(clicks / "b.tsv.gz", ns=(modified_ns, modified_ns))  # the manifest keeps it
    run(clicks / "mended", *given)
    assert content(clicks / "mended") == content(clicks / "whole")


def test_a_file_that_other_passes_have_read_may_not_be_replaced(
    clicks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The splits were cut by its lines."""
    path = clicks / "a.tsv.gz"
    path.write_bytes(gzip.compress((clicks / "a.tsv").read_bytes()))
    count = Stages.count_lines

    def count_then_damage(self: Stages) -> object:
        lines = count(self)
        path.write_bytes(path.read_bytes()[:-9])
        return lines

    monkeypatch.setattr(Stages, "count_lines", count_then_damage)
    with refused(DataError, ".../a.tsv.gz", "is cut short, or other bytes follow its gzip data"):
        run(clicks / "out", f"input.train={path}", *options("hash"))
