"""The dataset of a day's training: all of the day, and the asked share of the days before, each row at most once."""

from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.dataset.manifest import KeptColumn, LearntLabel, read_manifest
from dlrm_app.dataset.shard_files import verify_shards
from dlrm_app.errors import DataError
from dlrm_app.tools.daily.rows import Earlier, _completed, _other_columns, _schema, picked_rows, write_rows
from tests.loader.dataset_fixture import write_dataset
from tests.refusals import refused

FIRST, SECOND, THIRD = (date(2026, 11, number) for number in (1, 2, 3))


def rows_of(folder: Path, split: str) -> Counter[str]:
    """Every row as text, by reading the files as any program would."""
    paths = [folder / shard.path for shard in read_manifest(folder).splits[split].shards]
    return Counter(str(row) for path in paths for row in pq.ParquetFile(path).read().to_pylist())


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("days")
    for number in range(3):
        write_dataset(folder / str(number), rows={"train": 1500, "val": 100}, seed=number)
    return [folder / str(number) for number in range(3)]


def test_a_share_of_each_day_before_follows_the_day(days: list[Path], tmp_path: Path) -> None:
    first, second, third = map(read_manifest, days)
    earlier = [Earlier(FIRST, first, "train", 0.1), Earlier(SECOND, second, "train", 0.1)]
    write_rows(third, THIRD, earlier, tmp_path / "rows")
    made = read_manifest(tmp_path / "rows")
    verify_shards(made, checksums=True)
    rows = rows_of(tmp_path / "rows", "train")
    assert rows.total() == made.splits["train"].rows == 1500 + 2 * 150
    assert rows_of(days[2], "train") <= rows
    replayed = rows - rows_of(days[2], "train")
    for day in days[:2]:
        there = replayed & rows_of(day, "train")
        assert there.total() == 150
        replayed -= there
    assert rows_of(tmp_path / "rows", "val") == rows_of(days[2], "val")
    assert rows_of(tmp_path / "rows", "test") == rows_of(days[2], "train") + rows_of(days[2], "val")
    clicks = sum(count for row, count in rows.items() if "'label': 1" in row)
    assert made.splits["train"].positives == clicks


def test_rows_of_a_day_have_the_same_bytes_after_an_interruption(days: list[Path], tmp_path: Path) -> None:
    first, second, _ = map(read_manifest, days)
    folders = [tmp_path / "one", tmp_path / "two"]
    (folders[1] / "train").mkdir(parents=True)
    (folders[1] / "train" / "part-00000.parquet").write_bytes(b"half")
    for folder in folders:
        write_rows(second, SECOND, [Earlier(FIRST, first, "train", 0.3)], folder)
    files = [{p.relative_to(folder): p.read_bytes() for p in folder.rglob("*.*")} for folder in folders]
    assert files[0] == files[1]


def test_all_rows_of_the_days_before(days: list[Path], tmp_path: Path) -> None:
    first, second, _ = map(read_manifest, days)
    earlier = [Earlier(FIRST, first, split, 1.0) for split in ("train", "val")]
    write_rows(second, SECOND, earlier, tmp_path / "rows")
    all_rows = rows_of(days[0], "train") + rows_of(days[0], "val") + rows_of(days[1], "train")
    assert rows_of(tmp_path / "rows", "train") == all_rows


@given(st.integers(1, 500), st.data())
def test_rows_are_picked_once_and_others_on_another_day(rows: int, data: st.DataObject) -> None:
    wanted = data.draw(st.integers(0, rows))
    picked = picked_rows(rows, wanted, SECOND, FIRST, 0)
    assert len(set(picked.tolist())) == len(picked) == wanted
    assert np.array_equal(picked, np.sort(picked))
    assert np.array_equal(picked, picked_rows(rows, wanted, SECOND, FIRST, 0))


def test_earlier_rows_lack_the_values_of_new_columns(days: list[Path], tmp_path: Path) -> None:
    """A number, ids, lists and another label."""
    earlier = write_dataset(
        tmp_path / "then", {"train": 300, "val": 100}, num_dense=2, one_hot=[50], multi_hot=[]
    )
    third = read_manifest(days[2])
    dense = [replace(each, transform={"kind": "log3"}) for each in third.dense]
    wide = replace(third, dense=dense, labels=[LearntLabel("label"), LearntLabel("order")])
    schema = _schema(wide)
    table = _completed(pq.ParquetFile(earlier.folder / "val" / "part-00000.parquet").read(), wide)
    assert (table.schema.names, _other_columns(earlier, wide)) == (schema.names, [])
    assert set(table["c1"].to_pylist()) == {0}
    assert set(map(len, table["m0"].to_pylist())) == {0}
    assert np.isnan(table["order"].to_numpy()).all()
    assert table["i2"].to_numpy() == pytest.approx(np.log(3), rel=1e-6)
    write_rows(third, THIRD, [Earlier(FIRST, earlier, "val", 1.0)], tmp_path / "rows")
    made = read_manifest(tmp_path / "rows")
    verify_shards(made, checksums=True)
    assert made.splits["train"].rows == 1600
    assert _other_columns(earlier, replace(wide, weight="w")) == ["w"]


def test_days_of_other_columns_are_refused(days: list[Path], tmp_path: Path) -> None:
    write_dataset(tmp_path / "other", rows={"train": 300, "val": 100}, num_dense=2)
    first = read_manifest(days[0])
    other = read_manifest(tmp_path / "other")
    of_orders = replace(first, label="order")
    for manifest, names in (
        (other, "i2"),
        (of_orders, "label, order"),
        (replace(first, kept=[KeptColumn("user", "string")]), "user"),
    ):
        cure = "give the columns of the days before, or another output"
        with refused(DataError, str(first.folder), f"has other columns than ... ({names})...", cure):
            write_rows(manifest, SECOND, [Earlier(FIRST, first, "train", 0.1)], tmp_path / "rows")
