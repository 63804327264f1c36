"""Shards of a dataset in a store come when they are read: the same batches, and no more shards than a rank reads."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from dlrm_app.dataset.manifest import Manifest, read_manifest
from dlrm_app.dataset.shard_files import verify_shards
from dlrm_app.errors import DataError
from dlrm_app.loader.batch_order import Order, train_order
from dlrm_app.loader.reader import SplitReader
from dlrm_app.loader.rows import Ranges
from dlrm_app.stores.fetch import KeptFolder
from dlrm_app.stores.mirror import kept_folder
from dlrm_app.stores.names import local_place
from dlrm_app.stores.objects import StoredFile
from dlrm_app.stores.room import HELD, make_room
from tests.loader.dataset_fixture import write_dataset
from tests.preprocessing.running import content
from tests.refusals import refused
from tests.stores.memory_store import MemoryFolder

FEATURES = ["c0", "c1", "m0"]
URL = "s3://bucket/day"


@dataclass(frozen=True)
class CountingFolder(MemoryFolder):
    """Notes the names of the objects that were fetched."""

    fetched: list[str] = field(default_factory=list)

    def get(self, name: str, path: Path, digest: str = "") -> StoredFile:
        self.fetched.append(name)
        return super().get(name, path, digest)


@pytest.fixture
def disk(tmp_path: Path) -> Manifest:
    """16 shards of train and 4 of val, with one row group each."""
    rows = {"train": 2048, "val": 512}
    return write_dataset(tmp_path / "disk", rows, rows_per_group=128, rows_per_shard=128)


@pytest.fixture
def stored(disk: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CountingFolder:
    """The dataset in a store."""
    monkeypatch.setenv("DLRM_STORE_FOLDER", str(tmp_path / "stores"))
    return CountingFolder(URL, content(disk.folder))


def opened(stored: CountingFolder) -> Manifest:
    """The dataset as it is before any shard is read."""
    kept = KeptFolder(stored, local_place(URL))
    kept.fetch()
    stored.fetched.clear()
    return read_manifest(kept.folder)


def order_of(reader: SplitReader, rank: int, world_size: int) -> Order:
    sizes = {"global_batch_size": 128, "lanes": 8, "seed": 3, "epoch": 1}
    return train_order(reader.group_rows, **sizes, rank=rank, world_size=world_size)


def taken(ranges: Ranges) -> list[np.ndarray]:
    rows = zip(ranges.rows, ranges.ranges.tolist(), strict=True)
    return [part.dense[start:stop].copy() for part, (start, stop, _) in rows]


def batches(manifest: Manifest, rank: int, world_size: int, start: int = 0) -> list[np.ndarray]:
    reader = SplitReader(manifest, "train", FEATURES)
    order = order_of(reader, rank, world_size)
    return [part for ranges in reader.read(order, start, num_workers=2) for part in taken(ranges)]


def shards_read(manifest: Manifest, rank: int, world_size: int, start: int = 0) -> set[str]:
    """The shards that the pieces of a rank's batches lie in."""
    reader = SplitReader(manifest, "train", FEATURES)
    order = order_of(reader, rank, world_size)
    groups = {piece.group for step in range(start, order.num_steps) for piece in order.pieces(step)}
    return {manifest.splits["train"].shards[group].path for group in groups}


def test_before_any_row_is_read_only_the_shards_are_left(stored: CountingFolder) -> None:
    kept = KeptFolder(stored, local_place(URL))
    kept.fetch()
    shards = {shard.path for shard in read_manifest(kept.folder).shards}
    assert content(kept.folder).keys() == stored.objects.keys() - shards
    assert not shards & {*stored.fetched}


@pytest.mark.parametrize(("rank", "world_size", "start"), [(0, 1, 0), (0, 2, 0), (1, 2, 0), (1, 2, 9)])
def test_a_rank_reads_the_rows_of_a_disk_and_fetches_its_own_shards_once(
    disk: Manifest, stored: CountingFolder, rank: int, world_size: int, start: int
) -> None:
    manifest = opened(stored)
    verify_shards(manifest, checksums=True)
    found, wanted = batches(manifest, rank, world_size, start), batches(disk, rank, world_size, start)
    assert len(found) == len(wanted) > 0
    assert all(np.array_equal(*pair) for pair in zip(found, wanted, strict=True))
    assert sorted(stored.fetched) == sorted(shards_read(disk, rank, world_size, start))
    assert world_size == 1 or len(stored.fetched) < 16
    stored.fetched.clear()
    batches(manifest, rank, world_size, start)  # a second epoch
    batches(opened(stored), rank, world_size, start)  # another command
    assert stored.fetched == []


def test_what_is_brought_is_kept_by_a_command_that_works_there_next(
    disk: Manifest, stored: CountingFolder
) -> None:
    manifest = opened(stored)
    batches(manifest, 0, 2)
    whole = dict(stored.objects)
    with kept_folder(KeptFolder(stored, local_place(URL))):
        assert content(manifest.folder) == whole
        (manifest.folder / "more").write_text("1")
    assert stored.objects == {**whole, "more": b"1"}
    assert len(stored.fetched) == len({*stored.fetched})


def test_shards_of_another_dataset_at_the_same_place_are_fetched(
    disk: Manifest, stored: CountingFolder, tmp_path: Path
) -> None:
    batches(opened(stored), 0, 1)
    other = write_dataset(tmp_path / "other", {"train": 2048}, rows_per_group=128, rows_per_shard=128, seed=1)
    stored.objects.clear()
    stored.objects.update(content(other.folder))
    manifest = opened(stored)
    assert all(
        np.array_equal(*pair) for pair in zip(batches(manifest, 0, 1), batches(other, 0, 1), strict=True)
    )
    assert len(stored.fetched) == 16


def test_shards_that_differ_from_the_manifest_in_their_size_are_named_before_any_is_read(
    disk: Manifest, stored: CountingFolder
) -> None:
    stored.objects["train/part-00003.parquet"] += b"1"
    del stored.objects["val/part-00001.parquet"]
    with refused(DataError, "...train/part-00003.parquet", "has ... bytes, not ...") as caught:
        verify_shards(opened(stored))
    assert [problem.rule for problem in caught.value.problems][-1] == "is missing"


def test_a_folder_with_some_of_its_shards_gives_room(
    stored: CountingFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = opened(stored)
    batches(manifest, 0, 2)
    for lock in HELD.values():
        lock.close()
    HELD.clear()
    monkeypatch.setenv("DLRM_STORE_GIB", "1e-6")
    make_room()
    assert not manifest.folder.exists()
    batches(opened(stored), 0, 2)
