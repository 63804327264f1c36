"""Ranks that share the work: the bytes of one process, for any number of them, whichever is killed and comes again."""

import gzip
import itertools
import json
import os
import random
import threading
from collections.abc import Generator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from dlrm_app.encoding.columns import MadeColumns
from dlrm_app.errors import ConfigError, DataError, DlrmError
from dlrm_app.preprocessing.make_columns import ColumnMaker
from dlrm_app.preprocessing.preprocess import preprocess
from dlrm_app.preprocessing.summary import Dataset
from dlrm_app.preprocessing.work import meeting, rank_executor
from dlrm_app.preprocessing.work.executor import LocalExecutor
from dlrm_app.preprocessing.work.work_folder import RANKS, WORK
from tests.commands import wait_until
from tests.make_log import make_log
from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.running import configure, content, run
from tests.preprocessing.sharing import SharedRun, kill_ranks, rank_of, share
from tests.preprocessing.test_same_bytes import WAYS, options
from tests.refusals import refused

MORE_WAYS = {
    "content": [*WAYS["hash"], "split.by=content"],
    "sampled": [*WAYS["vocab"], "sampling.negatives=0.5"],
    "grown": ["encoding=vocab", "encoding.min_count=2", "encoding.grow_from={parent}", "encoding.day=2"],
}
SMALL = ["layout.unit_mib=1", "layout.row_group_rows=16", "rejects.max_fraction=0.1", "seed=3"]


@pytest.fixture(autouse=True)
def _small_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of 10,000 bytes, some 50 lines, and ranks that look at each other often."""
    monkeypatch.setattr("dlrm_app.preprocessing.request.MIB", 10_000)
    monkeypatch.setattr(meeting, "TICK_SECONDS", 0.005)
    monkeypatch.setattr(meeting, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(rank_executor, "_LIST_SECONDS", 0.01)


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    (tmp_path / "a.tsv").write_bytes(make_clicks(180, 1, bad_every=40))
    (tmp_path / "b.tsv").write_bytes(make_clicks(120, 2, bad_every=40)[:-1])
    return tmp_path


def of_way(clicks: Path, way: str) -> list[str]:
    return [f"input.train={clicks}/?.tsv", *(options(way) if way in WAYS else [*SMALL, *MORE_WAYS[way]])]


@pytest.mark.parametrize(
    ("way", "num_ranks"),
    [
        pytest.param(way, num_ranks, marks=[pytest.mark.slow] * (way not in ("hash", "vocab")))
        for way, num_ranks in zip((*WAYS, *MORE_WAYS), itertools.cycle([2, 3]))
    ],
)
def test_any_number_of_ranks_makes_the_bytes_of_one_process(clicks: Path, way: str, num_ranks: int) -> None:
    """Rejects included, of which both files have some. All ranks return the dataset, and nothing else is left."""
    given = of_way(clicks, way)
    if way == "grown":
        run(clicks / "parent", f"input.train={clicks}/a.tsv", *SMALL, "encoding=vocab", "encoding.day=1")
        given = [each.format(parent=clicks / "parent") for each in given]
    whole = run(clicks / "whole", *given)
    made = share(clicks / "shared", num_ranks, *given)
    assert content(clicks / "shared") == content(clicks / "whole")
    assert [each.manifest.splits for each in made] == [whole.splits] * num_ranks
    assert not (clicks / "shared" / WORK).exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gz", "parquet"])
def test_compressed_files_and_row_groups_are_shared(clicks: Path, kind: str) -> None:
    """A compressed file is one piece of work, and so are units of the same row group."""
    for name in "ab":
        path = clicks / f"{name}.tsv"
        if kind == "gz":
            (clicks / f"{name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        else:
            frame = pl.read_csv(path, separator="\t", has_header=False, infer_schema=False).drop_nulls(
                "column_1"
            )
            names = ["label", *(f"int_{n}" for n in range(13)), *(f"cat_{n}" for n in range(26))]
            frame.rename(dict(zip(frame.columns, names, strict=True))).write_parquet(
                clicks / f"{name}.parquet", row_group_size=100
            )
    given = [f"input.train={clicks}/?.{kind}", *options("targets")]
    run(clicks / "whole", *given)
    share(clicks / "shared", 2, *given)
    assert content(clicks / "shared") == content(clicks / "whole")


@pytest.mark.slow
def test_a_split_by_time_is_shared(tmp_path: Path) -> None:
    columns = ["{name: clicked, role: label}", "{name: shop, role: sparse, kind: integer}"]
    columns += ["{name: age, role: dense, kind: float}", "{name: at, role: time, kind: seconds}"]
    draw = np.random.default_rng(0)
    rows = {"clicked": draw.integers(0, 2, 3000), "shop": draw.integers(0, 50, 3000)}
    rows |= {"age": draw.normal(size=3000), "at": draw.integers(1 << 30, 1 << 31, 3000)}
    given = [*make_log(tmp_path, columns, rows), "split.by=at", "split.val=0.1", "encoding.num_embeddings=9"]
    run(tmp_path / "whole", *given, "layout.unit_mib=1")
    share(tmp_path / "shared", 3, *given, "layout.unit_mib=1")
    assert content(tmp_path / "shared") == content(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3))])
def test_ranks_that_are_killed_and_started_again_one_by_one_change_nothing(
    clicks: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of three ranks, rank 0 too, dies at random commits and while it waits, and comes again."""
    given, draw = of_way(clicks, "targets"), random.Random(seed)
    run(clicks / "whole", *given)
    lives = {rank: [draw.randrange(5) for _ in range(2)] for rank in range(3)}

    def dies(rank: int, what: str) -> bool:
        if what == "pause":
            return draw.random() < 0.005
        if not lives[rank]:
            return False
        lives[rank][0] -= 1
        return lives[rank][0] < 0 and lives[rank].pop(0) < 0

    killed = kill_ranks(monkeypatch, dies)
    shared = SharedRun(clicks / "shared", *given)
    running = dict(zip(shared.start(3), range(3), strict=True))
    while running:
        for ended in wait(running, return_when=FIRST_COMPLETED).done:
            rank = running.pop(ended)
            if isinstance(ended.exception(), KeyboardInterrupt):
                running[shared.start(3, rank)[0]] = rank
            else:
                ended.result()
    assert min(killed[rank] for rank in range(3)) >= 2
    assert content(clicks / "shared") == content(clicks / "whole")


def test_a_rank_that_comes_again_between_two_passes_waits_for_the_next(
    clicks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last pass has ended, with the work of its earlier process, and rank 0 is at work by itself."""
    given, dying = of_way(clicks, "hash"), threading.Event()
    kill_ranks(monkeypatch, lambda rank, what: rank == 1 and dying.is_set())
    shared, make = SharedRun(clicks / "shared", *given), ColumnMaker.make
    ranks: list[Future[Dataset]] = []

    def state_of(rank: int) -> Any:
        return json.loads((clicks / "shared" / WORK / RANKS / f"{rank}.state").read_text())

    def make_after_a_loss(self: ColumnMaker) -> MadeColumns:
        dying.set()
        assert isinstance(ranks[1].exception(), KeyboardInterrupt)
        dying.clear()
        gone = state_of(1)["process"]
        ranks[1:] = shared.start(2, 1)
        wait_until(lambda: state_of(1)["process"] != gone and state_of(1)["task"] > 0, 20, "rank 1")
        return make(self)

    with monkeypatch.context() as patched:
        patched.setattr(ColumnMaker, "make", make_after_a_loss)
        ranks += shared.start(2)
        wait_until(lambda: len(ranks) == 2, 20, "both")
        for each in list(ranks):
            with suppress(KeyboardInterrupt):
                each.result()
    ranks[1].result()
    run(clicks / "whole", *given)
    assert content(clicks / "shared") == content(clicks / "whole")


@pytest.mark.slow
def test_all_ranks_are_killed_and_others_continue(clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another number, one process among them."""
    given, left = of_way(clicks, "targets"), 0
    run(clicks / "whole", *given)

    def dies(rank: int, what: str) -> bool:
        nonlocal left
        left -= what == "commit"
        return left < 0

    kill_ranks(monkeypatch, dies)
    shared, attempts = SharedRun(clicks / "shared", *given), 0
    for num_ranks in itertools.cycle([3, 1, 2, 4]):
        left, attempts = 9, attempts + 1
        errors = [each.exception() for each in shared.start(num_ranks)]
        if errors == [None] * num_ranks:
            break
        assert all(isinstance(error, KeyboardInterrupt | None) for error in errors)
    assert attempts > 4
    assert content(clicks / "shared") == content(clicks / "whole")


@pytest.mark.parametrize("present", [0, 1])
def test_a_rank_that_never_comes_is_named(clicks: Path, present: int) -> None:
    """What was not begun leaves nothing behind."""
    (alone,) = SharedRun(clicks / "out", *of_way(clicks, "hash")).start(
        2, present, more=("timeout_minutes=0.005",)
    )
    rule = "has not been heard of for timeout_minutes=0.005"
    with refused(DlrmError, f"rank {1 - present} of 2", rule):
        alone.result()
    assert not (clicks / "out").exists()


def test_a_rank_that_is_gone_for_good_is_named_by_all(clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process then continues where they stopped."""
    given, left = of_way(clicks, "hash"), 2

    def dies(rank: int, what: str) -> bool:
        nonlocal left
        left -= rank == 1 and what == "commit"
        return rank == 1 and left < 0

    killed = kill_ranks(monkeypatch, dies)
    ranks = SharedRun(clicks / "shared", *given).start(3, more=("timeout_minutes=0.05",))
    assert isinstance(ranks[1].exception(), KeyboardInterrupt)
    assert killed == {1: 1}
    for rank in (0, 2):
        with refused(DlrmError, "rank 1 of 3", "has not been heard of for timeout_minutes=0.05"):
            ranks[rank].result()
    assert len([*(clicks / "shared" / WORK).glob("*/*.json")]) > 2
    run(clicks / "shared", *given)
    run(clicks / "whole", *given)
    assert content(clicks / "shared") == content(clicks / "whole")


@pytest.mark.parametrize(
    ("more", "num_ranks", "key", "rule"),
    [
        (("split.val=0.2",), 2, "split.val", "is 0.1 for rank 0, and 0.2 for rank 1"),
        ((), 3, "ranks", "is 2 for rank 0, and 3 for rank 1"),
    ],
)
def test_other_settings_are_refused_on_all_ranks(
    clicks: Path, more: tuple[str, ...], num_ranks: int, key: str, rule: str
) -> None:
    shared = SharedRun(clicks / "out", *of_way(clicks, "hash"))
    ranks = [*shared.start(2, 0), *shared.start(num_ranks, 1, more=more)]
    for each in ranks:
        with refused(ConfigError, key, rule, "give all ranks the same settings"):
            each.result()
    assert not (clicks / "out").exists()


def test_an_error_of_one_rank_ends_all_with_its_cure(clicks: Path) -> None:
    """A damaged file of rank 1's share, in a pass on which nothing else depends: it is replaced, and the run continues."""
    for name in "ab":
        (clicks / f"{name}.gz").write_bytes(gzip.compress((clicks / f"{name}.tsv").read_bytes()))
    given = [f"input.train={clicks}/?.gz", *SMALL, *WAYS["hash"][:1]]
    run(clicks / "whole", *given)
    good, times = (clicks / "b.gz").read_bytes(), (clicks / "b.gz").stat()
    (clicks / "b.gz").write_bytes(good[:-9])
    for each in SharedRun(clicks / "shared", *given).start(2):
        with refused(DataError, ".../b.gz", "is cut short, or other bytes follow its gzip data"):
            each.result()
    (clicks / "b.gz").write_bytes(good)
    os.utime(clicks / "b.gz", ns=(times.st_atime_ns, times.st_mtime_ns))  # the manifest keeps it
    share(clicks / "shared", 2, *given)
    assert content(clicks / "shared") == content(clicks / "whole")


def test_an_output_that_ranks_work_on_is_refused(clicks: Path) -> None:
    """To a second process of a rank, and to one that works by itself."""
    given = of_way(clicks, "hash")
    shared = SharedRun(clicks / "out", *given)
    waiting = shared.start(3, 0, 2)
    wait_until(lambda: len([*(clicks / "out" / WORK / RANKS).glob("*.lock")]) == 2, 20, "the ranks")
    for rank in (0, 2):
        with refused(
            DlrmError,
            "",
            f"another process is rank {rank} of those that work on output=.../out: wait for it...",
        ):
            shared.start(3, rank)[0].result()
    with refused(
        DlrmError, "", "another dlrm-preprocess is working on output=.../out: wait for it or end it"
    ):
        run(clicks / "out", *given)
    for each in (*waiting, *shared.start(3, 1)):
        each.result()


def test_a_finished_dataset_is_left_alone_by_all_ranks(clicks: Path) -> None:
    """Also one that comes when the others have left."""
    given = of_way(clicks, "hash")
    first = run(clicks / "out", *given)
    assert [each.manifest for each in share(clicks / "out", 3, *given)] == [first] * 3
    (late,) = SharedRun(clicks / "out", *given).start(3, 2)
    assert late.result().manifest == first


def test_dask_divides_its_work_itself(clicks: Path) -> None:
    with refused(ConfigError, "executor=dask", "divides the work, and so do the 2 ranks that were started"):
        preprocess(
            configure("input.train=x", "output=y", "executor=dask", "dask.address=tcp://a"), rank_of(0, 2)
        )


def test_a_pass_that_lacks_units_ends_the_run(clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a network's disk that does not show yet what another machine has renamed."""
    monkeypatch.setattr(LocalExecutor, "run", lambda self, work, feeds: iter_of_none())
    with refused(
        DlrmError, "output=.../out", "does not show all units that other processes have finished..."
    ):
        run(clicks / "out", *of_way(clicks, "hash"))


def iter_of_none() -> Generator[object, None, None]:
    yield from ()
