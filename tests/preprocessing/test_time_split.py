"""Splits by a time column: the latest rows, in whatever order, files and format they lie."""

import logging
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from dlrm_app.dataset.manifest import Manifest
from dlrm_app.encoding.row_hash import content_hashes
from dlrm_app.errors import ConfigError, DataError
from dlrm_app.inference.predict.parts import raw_spec
from dlrm_app.logs.arrow_rows import ArrowCursor
from dlrm_app.logs.read_spec import read_spec
from dlrm_app.preprocessing.passes.time_split import RowsByTime, write_times
from tests.make_log import describe, write_csv
from tests.preprocessing.interruptions import run_in_pieces
from tests.preprocessing.running import configure, content, run, table_of
from tests.refusals import refused

ROWS = 80_000
FIRST = datetime(2026, 11, 1, tzinfo=timezone.utc)
COLUMNS = [
    "{name: clicked, role: label}",
    "{name: number, role: dense, kind: integer}",
    "{name: shop, role: sparse, kind: integer}",
    "{name: at, role: time, kind: seconds}",
]
GIVEN = ["encoding=hash", "encoding.num_embeddings=100", "dense.transform=none", "split.by=at"]


def draw(num_rows: int = ROWS, step: int = 60) -> tuple[pa.Table, NDArray[np.int64]]:
    """(rows in no order of time, their seconds, which are multiples of ``step`` and repeat)."""
    random = np.random.default_rng(0)
    at = int(FIRST.timestamp()) + step * random.integers(0, 30 * 86_400 // step, num_rows)
    return pa.table(
        {
            "clicked": random.integers(0, 2, num_rows),
            "number": np.arange(num_rows),
            "shop": random.integers(0, 50, num_rows),
            "at": at,
        }
    ), at


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 2 MiB of text, so two units or more; a column numbers the rows."""
    folder = tmp_path_factory.mktemp("times")
    describe(folder, COLUMNS)
    write_csv(folder / "log.csv", draw()[0])
    return folder


def make(log: Path, name: str, *more: str, source: str | Sequence[str] = "log.csv") -> Manifest:
    files = [source] if isinstance(source, str) else source
    train = f"input.train=[{','.join(f'{log}/{file}' for file in files)}]"
    return run(log / name, f"dataset={log}/log.yaml", train, "layout.unit_mib=1", *GIVEN, *more)


def numbers(manifest: Manifest, split: str) -> list[int]:
    return [int(each) for each in table_of(manifest, split)["number"].to_pylist()]


def plainly(at: NDArray[np.int64], val: float, test: float) -> dict[str, list[int]]:
    """The rows of each split, by a plain sort of all times: equal times go to the later split."""
    in_order = np.sort(at)
    test_from = in_order[len(at) - int(len(at) * test)]
    before = int((at < test_from).sum())
    val_from = in_order[before - int(len(at) * val)]
    return {
        "train": np.flatnonzero(at < val_from).tolist(),
        "val": np.flatnonzero((at >= val_from) & (at < test_from)).tolist(),
        "test": np.flatnonzero(at >= test_from).tolist(),
    }


def splits_of(manifest: Manifest) -> dict[str, list[int]]:
    return {split: numbers(manifest, split) for split in manifest.splits}


def test_shares_are_the_latest_rows(log: Path) -> None:
    """Each split keeps the order of the log; a row of equal time is never on both sides of a cut."""
    made = make(log, "shares", "split.val=0.1", "split.test=0.2")
    assert splits_of(made) == plainly(draw()[1], 0.1, 0.2)
    assert made.splits["train"].rows + made.splits["val"].rows + made.splits["test"].rows == ROWS


def test_moments_cut_the_rows(log: Path) -> None:
    """Moments count in UTC, in the zone that is given, or by their own offset."""
    _, at = draw()
    cut = datetime(2026, 11, 20, tzinfo=timezone.utc).timestamp()
    made = make(log, "moments", "split.val_from=2026-11-20", "split.test_from=2026-11-25T06:30Z")
    test = datetime(2026, 11, 25, 6, 30, tzinfo=timezone.utc).timestamp()
    assert numbers(made, "train") == np.flatnonzero(at < cut).tolist()
    assert numbers(made, "val") == np.flatnonzero((at >= cut) & (at < test)).tolist()
    tokyo = make(log, "tokyo", "split.val_from=2026-11-20", "split.zone=Asia/Tokyo")
    assert numbers(tokyo, "train") == np.flatnonzero(at < cut - 9 * 3600).tolist()
    own = make(log, "own", "split.val_from=2026-11-20T00:00+01:00", "split.zone=Asia/Tokyo")
    assert numbers(own, "train") == np.flatnonzero(at < cut - 3600).tolist()


def test_a_share_before_a_moment(log: Path) -> None:
    """val's share is of all rows, taken before test begins."""
    _, at = draw()
    made = make(log, "mixed", "split.val=0.1", "split.test_from=2026-11-25")
    test = datetime(2026, 11, 25, tzinfo=timezone.utc).timestamp()
    before = np.sort(at[at < test])
    val = before[len(before) - int(ROWS * 0.1)]
    assert numbers(made, "val") == np.flatnonzero((at >= val) & (at < test)).tolist()


def test_files_of_any_order_and_format_give_the_same_rows(log: Path) -> None:
    """Text and Parquet, in one file or several, with times as numbers or Arrow's own."""
    rows, at = draw()
    whole = plainly(at, 0.1, 0.1)
    shares = ["split.val=0.1", "split.test=0.1"]
    moments = pa.array(at).cast(pa.timestamp("s", "UTC"))
    pq.write_table(rows.set_column(3, "at", moments), log / "log.parquet")
    assert splits_of(make(log, "parquet", *shares, source="log.parquet")) == whole
    pieces = [rows.slice(start, ROWS // 4) for start in range(0, ROWS, ROWS // 4)]
    for index, piece in enumerate(pieces):
        write_csv(log / f"piece-{index}.csv", piece)
        pq.write_table(piece, log / f"piece-{index}.parquet")
    for ending in ("csv", "parquet"):
        names = [f"piece-{index}.{ending}" for index in (2, 0, 3, 1)]
        made = make(log, f"pieces-{ending}", *shares, source=names)
        assert {split: sorted(rows) for split, rows in splits_of(made).items()} == whole


@pytest.mark.parametrize(
    "more", [[], ["encoding=vocab", "encoding.num_embeddings=null", "shuffle=full", "sampling.negatives=0.5"]]
)
@pytest.mark.slow
def test_interrupted_runs_make_the_same_bytes(
    log: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    """At every commit, of the pass over times too."""
    settings = ["split.val=0.1", "split.test=0.1", *more]
    make(log, f"whole-{len(more)}", *settings)
    with monkeypatch.context() as patch:
        pieces = run_in_pieces(lambda: make(log, f"pieces-{len(more)}", *settings), patch, 1)
    assert pieces > 2
    assert content(log / f"pieces-{len(more)}") == content(log / f"whole-{len(more)}")


def test_missing_times(log: Path) -> None:
    """They are refused, or go to the split that is named."""
    rows, at = draw()
    is_missing = np.arange(ROWS) % 1000 == 7
    write_csv(log / "gaps.csv", rows.set_column(3, "at", pa.array(at, mask=is_missing)))
    with pytest.raises(
        DataError, match=r"split\.by=at is missing in 80 of 80,000 rows.*split\.missing=train"
    ):
        make(log, "gaps", "split.val=0.1", source="gaps.csv")
    made = make(
        log, "gaps", "split.val=0.1", "split.missing=train", source="gaps.csv"
    )  # the same folder goes on
    known = np.sort(at[~is_missing])
    cut = known[len(known) - int(len(known) * 0.1)]
    assert numbers(made, "val") == np.flatnonzero((at >= cut) & ~is_missing).tolist()
    assert numbers(made, "train") == np.flatnonzero((at < cut) | is_missing).tolist()


def test_scored_rows_need_not_have_the_time(log: Path) -> None:
    """They have the same contents, by which a model's own rows are recognised, and copies at other times are one row."""
    scored = raw_spec(make(log, "scored", "split.val=0.1"))
    trained = read_spec(configure(f"dataset={log}/log.yaml", "input.train=x", "output=x").dataset)
    rows, _ = draw(100)
    hashes = []
    for spec, table in ((trained, rows), (scored, rows.drop_columns("at"))):
        found = spec.in_columns(table.column_names, None, "rows", "") if spec is trained else spec
        hashes.append(content_hashes(next(iter(ArrowCursor(table, found).rows(100, None))), found).tolist())
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize(
    ("settings", "key", "rule", "cure"),
    [
        (
            ["split.by=nothing", "split.val=0.1"],
            "split.by=nothing",
            "names nothing, which is no column",
            "...",
        ),
        (
            ["split.by=shop", "split.val=0.1"],
            "split.by=shop",
            "names a column of role sparse",
            "give it role: time...",
        ),
        (
            [],
            "split.by",
            "divides the rows by time, and no split is to be cut off",
            "give split.val=0.1 or...",
        ),
        (
            ["split.val=0.1", "split.val_from=2026-11-20"],
            "split.val_from",
            "and split.val both make...",
            "...",
        ),
        (
            ["split.val_from=yesterday"],
            "split.val_from",
            "must be a date or a moment",
            "such as 2026-11-20...",
        ),
        (
            ["split.by=end", "split.val_from=2026-11-20"],
            "split.val_from",
            "is for splits by a time column...",
            "...",
        ),
        (["split.val=0.1", "split.missing=test"], "split.missing", "must be train or one of val", "..."),
        (["split.val_from=2026-11-20", "split.zone=Asia/Tokio"], "split.zone", "is no time zone...", "..."),
        (
            ["split.val_from=2026-11-20", "split.test_from=2026-11-20"],
            "split.val_from=2026-11-20",
            "is not before split.test_from=2026-11-20, where val ends",
            "...",
        ),
    ],
)
def test_refuses_impossible_settings(log: Path, settings: list[str], key: str, rule: str, cure: str) -> None:
    with refused(ConfigError, key, rule, cure):
        make(log, "refused", *settings)
    assert not (log / "refused").exists()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (
            ["split.val_from=2027-01-01"],
            ConfigError,
            "gives the val split no rows: the latest at before it is 2026-11-30",
        ),
        (["split.val_from=2026-01-01"], ConfigError, "leaves no rows before the val split"),
        (["split.val=0.00001"], DataError, "of the 80,000 rows of input.train is less than one"),
    ],
)
def test_refuses_empty_splits(log: Path, settings: list[str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(log, f"empty-{message[:5]}", *settings)


def test_equal_times_leave_nothing_to_train_on(tmp_path: Path) -> None:
    describe(tmp_path, COLUMNS)
    write_csv(tmp_path / "log.csv", draw(100, step=30 * 86_400)[0])
    with pytest.raises(ConfigError, match="equal times stay together, and the earliest is 2026-11-01"):
        make(tmp_path, "same", "split.val=0.1")


@pytest.mark.parametrize(("is_sorted", "warns"), [(True, False), (False, True)])
def test_warns_of_lines_that_are_not_in_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_sorted: bool, warns: bool
) -> None:
    """Where lines decide the splits; the number of older rows is exact."""
    rows, at = draw(10_000)
    if is_sorted:
        rows, at = rows.take(np.argsort(at, kind="stable")), np.sort(at)
    write_csv(tmp_path / "log.csv", rows)
    describe(tmp_path, COLUMNS, "derived: [{name: hour, kind: hour, of: at}]")
    with caplog.at_level(logging.WARNING):
        make(tmp_path, "made", "split.by=end", "split.val=0.1")
    older = int((at[9000:] < at[:9000].max()).sum())
    said = f"{older:,} of the 1,000 rows of val are older than the newest row of train"
    assert (said in caplog.text) == warns


def test_rows_by_time_agree_with_a_sort(tmp_path: Path) -> None:
    """For any division into units: times far apart, equal, negative and with fractions."""
    random = np.random.default_rng(1)
    times = np.concatenate([random.normal(size=300) * 1e9, random.integers(0, 5, 300), [0.1] * 50])
    parts = np.split(random.permutation(times), [0, 1, 100, 400])
    paths = [tmp_path / f"{index}.times" for index in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        write_times(path, [part])
    rows, in_order = RowsByTime(paths), np.sort(times)
    assert [rows.time_of(row) for row in range(len(times))] == in_order.tolist()
    for time in [*times[::7], -1e300, 1e300]:
        assert rows.before(time) == int((times < time).sum())
        assert rows.up_to(time) == int((times <= time).sum())
