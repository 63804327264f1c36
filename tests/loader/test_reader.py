"""Decoding shards: what is read is what was written, and whatever is wrong is named."""

import dataclasses
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from dlrm_app import checksums
from dlrm_app.checksums import checksum
from dlrm_app.dataset import shard_files
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.dataset.shard_files import ShardReader, verify_shards
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import DataError, DlrmError
from dlrm_app.loader.batch_order import Order, train_order
from dlrm_app.loader.reader import SplitReader, verify_together
from dlrm_app.loader.rows import Ranges, Rows
from tests.loader.dataset_fixture import write_dataset
from tests.loader.test_rows import Row, copied, whole
from tests.ranks import on_ranks
from tests.refusals import refused

FEATURES = ["c1", "m0", "c0"]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return write_dataset(tmp_path_factory.mktemp("data") / "x", 2000, rows_per_group=100, rows_per_shard=450)


@pytest.fixture
def own_manifest(tmp_path: Path) -> Manifest:
    """One to damage."""
    return write_dataset(tmp_path / "x", 400, rows_per_group=100, rows_per_shard=200)


def written(manifest: Manifest, split: str, features: list[str]) -> list[Any]:
    """Every row of the split as Python values, read by pyarrow alone."""
    assert manifest.path is not None
    tables = [pq.read_table(manifest.path / shard.path) for shard in manifest.splits[split].shards]
    multi_hot = {column.name for column in manifest.sparse if column.multi_hot}
    return [
        (
            [row[column.name] for column in manifest.dense],
            [row[name] if name in multi_hot else [row[name]] for name in features],
            [float(row["label"])],
        )
        for row in pa.concat_tables(tables).to_pylist()
    ]


def as_read(lots: Iterable[Ranges]) -> list[list[Row]]:
    """The rows of every batch, as ``written`` gives them."""
    return [batch for ranges in lots for batch in copied(ranges, 3, len(FEATURES))]


class RecordingReader(SplitReader):
    """Notes which row groups are decoded, and how many are alive at once."""

    def __init__(self, manifest: Manifest, split: str) -> None:
        super().__init__(manifest, split, FEATURES)
        self.decoded: list[int] = []
        self.memory: set[int] = set()
        self.alive: list[weakref.ref[Any]] = []
        self.most_alive = 0

    def decode(
        self, group: int, row_order: NDArray[np.int64] | None = None, memory: NDArray[np.int32] | None = None
    ) -> Rows:
        rows = super().decode(group, row_order, memory)
        self.decoded.append(group)
        self.memory.add(rows.memory.__array_interface__["data"][0])
        self.alive = [ref for ref in self.alive if ref() is not None] + [weakref.ref(rows)]
        self.most_alive = max(self.most_alive, len(self.alive))
        return rows


def orders(group_rows: list[int], world_size: int = 4) -> list[Order]:
    common: dict[str, Any] = {"global_batch_size": 96, "lanes": 8, "seed": 5, "epoch": 1}
    return [train_order(group_rows, **common, rank=rank, world_size=world_size) for rank in range(world_size)]


def test_training_reads_the_rows_that_the_order_names(manifest: Manifest) -> None:
    """Row by row, from the groups' permutations written out."""
    reader = SplitReader(manifest, "train", FEATURES)
    expected = written(manifest, "train", FEATURES)
    starts = np.concatenate([[0], np.cumsum(reader.group_rows)])
    for order in orders(reader.group_rows):
        for step, rows in enumerate(as_read(reader.read(order))):
            places = [
                starts[piece.group] + order.row_order(piece.group, reader.group_rows[piece.group])[row]
                for piece in order.pieces(step)
                for row in range(piece.start, piece.stop)
            ]
            assert rows == [expected[place] for place in places]


def test_a_rank_decodes_only_what_it_uses_and_that_once(manifest: Manifest) -> None:
    """Recorded reads are the groups of the rank's lanes; at most three per lane are held, and three prefetched."""
    for order in orders(SplitReader(manifest, "train", FEATURES).group_rows):
        reader = RecordingReader(manifest, "train")
        for _ in reader.read(order):
            pass
        needed = {piece.group for step in range(order.num_steps) for piece in order.pieces(step)}
        assert len(needed) < len(reader.group_rows)
        assert Counter(reader.decoded) == Counter(needed)
        assert reader.most_alive <= 3 * len(order.firsts) + 3


@pytest.mark.parametrize("num_workers", [1, 3])
def test_memory_stays_flat(tmp_path: Path, num_workers: int) -> None:
    """However many row groups are read: one's memory goes to another once its last row is given."""
    manifest = write_dataset(tmp_path / "x", 18_000, rows_per_group=300, rows_per_shard=6000)
    reader = RecordingReader(manifest, "train")
    (order,) = orders(reader.group_rows, world_size=1)
    for _ in reader.read(order, num_workers=num_workers):
        pass
    assert len(reader.decoded) > 55
    assert len(reader.memory) <= 3 * len(order.firsts) + 3 * num_workers + 1


def test_reading_may_begin_anywhere(manifest: Manifest) -> None:
    """The same batches as without the stop, and no row group from before."""
    reader = RecordingReader(manifest, "train")
    order = orders(reader.group_rows)[1]
    whole = as_read(reader.read(order))
    for start in range(order.num_steps + 1):
        reader.decoded.clear()
        assert as_read(reader.read(order, start)) == whole[start:]
        needed = {piece.group for step in range(start, order.num_steps) for piece in order.pieces(step)}
        assert set(reader.decoded) == needed


def test_a_split_without_labels_is_refused(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path / "x", 100, labelled=False)
    with refused(DataError, ".../x", "has no labels in its test split"):
        SplitReader(manifest, "test", FEATURES)


def test_a_split_that_is_not_there_is_named(manifest: Manifest) -> None:
    with refused(DataError, ".../x", "has no holdout split, only train, val, test"):
        SplitReader(manifest, "holdout", FEATURES)


def rewrite(manifest: Manifest, change: Callable[[pa.Table], pa.Table]) -> Manifest:
    """The manifest after its first training shard was replaced, as if preprocessing had written it so."""
    assert manifest.path is not None
    split = manifest.splits["train"]
    path = manifest.path / split.shards[0].path
    pq.write_table(change(pq.read_table(path)), path, row_group_size=100)
    shard = dataclasses.replace(split.shards[0], bytes=path.stat().st_size, checksum=checksum(path))
    train = dataclasses.replace(split, shards=[shard, *split.shards[1:]])
    return dataclasses.replace(manifest, splits={**manifest.splits, "train": train})


def with_value(name: str, row: int, value: Any, kind: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        values = table[name].to_pylist()
        values[row] = value
        return table.set_column(table.schema.get_field_index(name), name, pa.array(values, kind))

    return change


BAGS = pa.list_(pa.int32())


@pytest.mark.parametrize(
    ("change", "group", "message"),
    [
        (with_value("c0", 3, 50, pa.int32()), 0, "column c0: 1 ids ... its table of 50 rows, such as 50"),
        (with_value("c0", 3, -1, pa.int32()), 0, "column c0: 1 ids ... its table of 50 rows, such as -1"),
        (with_value("m0", 150, [1, 30], BAGS), 1, "column m0: 1 ids ... its table of 30 rows, such as 30"),
        (with_value("m0", 150, [None], BAGS), 1, "column m0: 1 ids inside lists are missing"),
        (with_value("m0", 150, None, BAGS), 1, "column m0: 1 values are missing"),
        (with_value("c1", 3, None, pa.int32()), 0, "column c1: 1 values are missing"),
        (with_value("i2", 3, None, pa.float32()), 0, "column i2: 1 values are missing"),
        (with_value("c1", 3, 1, pa.int64()), 0, "column c1: it is int64, the manifest promises int32"),
        (with_value("i0", 3, 1.0, pa.float64()), 0, "column i0: it is double, the manifest promises float"),
        (
            with_value("m0", 3, [1], pa.list_(pa.int64())),
            0,
            "column m0: it is list<...int64...>, ... promises list<",
        ),
        (with_value("label", 3, 1, pa.int8()), 0, "column label: it is int8, the manifest promises uint8"),
        (lambda table: table.drop_columns(["i1", "m0"]), 0, "column i1: it is missing"),
        (
            lambda table: table.slice(50),
            0,
            "holds 2 row groups of 100, 50 rows, the manifest says 2 row groups of 100, 100 rows",
        ),
    ],
)
def test_a_wrong_column_is_named_with_its_file(
    own_manifest: Manifest, change: Callable[[pa.Table], pa.Table], group: int, message: str
) -> None:
    """Ids outside their table are errors, never clamped; so are missing values, types and columns."""
    reader = SplitReader(rewrite(own_manifest, change), "train", FEATURES)
    with refused(DataError, "...part-00000.parquet", f"...{message}..."):
        reader.decode(group)


def test_the_name_of_a_lists_items_does_not_matter(own_manifest: Manifest) -> None:
    """Parquet writers call them item or element."""
    change = with_value("m0", 0, [7], pa.list_(pa.field("element", pa.int32(), nullable=False)))
    rows = SplitReader(rewrite(own_manifest, change), "train", ["m0"]).decode(0)
    assert copied(whole(rows), 3, 1)[0][0][1] == [[7]]


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        content[len(content) // 4] ^= 0x55
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", "is missing"),
        ("truncated", "has ... bytes, not"),
        ("empty", "has 0 bytes"),
        ("flipped", "has other bytes"),
    ],
)
def test_a_damaged_shard_is_named(own_manifest: Manifest, how: str, message: str) -> None:
    """When it is read, whatever the decoder says of it; a flipped bit by its page's checksum."""
    assert own_manifest.path is not None
    damage(own_manifest.path / own_manifest.splits["train"].shards[1].path, how)
    reader = SplitReader(own_manifest, "train", FEATURES)
    reader.decode(0)
    with refused(DataError, "...part-00001.parquet", f"{message}...", cure="copy the files..."):
        [reader.decode(group) for group in (2, 3)]


@pytest.mark.parametrize("how", ["missing", "truncated", "flipped"])
def test_verifying_names_every_damaged_shard(own_manifest: Manifest, how: str) -> None:
    """Before anything is read. A flipped bit keeps the size: it takes checksums to find it."""
    verify_shards(own_manifest, checksums=True)
    assert own_manifest.path is not None
    for shard in (own_manifest.splits["train"].shards[1], own_manifest.splits["val"].shards[0]):
        damage(own_manifest.path / shard.path, how)
    if how == "flipped":
        verify_shards(own_manifest)
    with pytest.raises(DataError) as caught:
        verify_shards(own_manifest, checksums=True)
    assert str(caught.value).count("\n  - ") == 2
    assert "train/part-00001.parquet" in str(caught.value)
    assert "val/part-00000.parquet" in str(caught.value)


def test_a_reader_keeps_a_bounded_number_of_footers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch comes across the footers of most shards, which take gigabytes where they are many."""
    monkeypatch.setattr(shard_files, "FOOTERS", 3)
    manifest = write_dataset(tmp_path / "x", {"train": 1000}, rows_per_group=50, rows_per_shard=100)
    reader = ShardReader(manifest.folder, ["label"])
    for _ in range(2):
        for shard in manifest.splits["train"].shards:
            assert [reader.read(shard, index).num_rows for index in range(2)] == [50, 50]
    assert reader._footer.cache_info().currsize == 3
    assert reader._footer.cache_info().misses == 20


def verify_counting(manifest: Manifest, runtime: Runtime) -> list[str]:
    """The shards that this rank opens to verify their checksums; then the damaged one is named."""
    opened: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksums, "checksum", lambda path: opened.append(path.name) or checksum(path))
        verify_together(manifest, True, runtime)
    return opened


def test_ranks_share_the_verification_of_shards(manifest: Manifest) -> None:
    first, second = on_ranks(partial(verify_counting, manifest), 2)
    assert sorted(first + second) == sorted(Path(shard.path).name for shard in manifest.shards)
    assert abs(len(first) - len(second)) <= 1


def refusal_of(manifest: Manifest, runtime: Runtime) -> str:
    with pytest.raises(DlrmError) as refused:
        verify_together(manifest, True, runtime)
    return str(refused.value)


def test_a_shard_that_one_rank_finds_damaged_is_named_by_all(own_manifest: Manifest) -> None:
    damaged = own_manifest.folder / own_manifest.shards[1].path
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    first, second = on_ranks(partial(refusal_of, own_manifest), 2)
    assert first == second
    assert str(damaged) in first
