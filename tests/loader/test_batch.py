"""Batches: the tensors that a model gets are the rows that were written."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dlrm_app.dataset.manifest import Manifest
from dlrm_app.loader.batch import PLAIN, Batch, EvalBatches, Loading, TrainBatches, choose_loading
from dlrm_app.loader.batch_order import BatchPlan
from dlrm_app.loader.reader import SplitReader
from tests.loader.dataset_fixture import write_dataset
from tests.loader.test_reader import written

FEATURES = ["c1", "m0", "c0"]
ONE_HOT = ["c1", "c0"]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return write_dataset(tmp_path_factory.mktemp("data") / "x", 2000, rows_per_group=100, rows_per_shard=450)


def train_batches(
    manifest: Manifest, features: list[str] = FEATURES, loading: Loading = PLAIN, **settings: Any
) -> TrainBatches:
    plan = BatchPlan(global_batch_size=96, lanes=8, seed=3, **settings)
    return TrainBatches(SplitReader(manifest, "train", features), plan, loading)


def rows_of(batch: Batch) -> list[Any]:
    """(dense values, ids of every feature in the order of the keys, [label]) of every row that is no padding."""
    jagged = [feature.to_dense() for feature in batch.sparse_features.to_dict().values()]
    return [
        (
            batch.dense_features[row].tolist(),
            [ids[row].tolist() for ids in jagged],
            [float(batch.supervision.labels[0, row])],
        )
        for row in range(batch.num_valid)
    ]


@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 2)])
def test_every_member_reads_an_epoch_of_its_own(manifest: Manifest, rank: int, world_size: int) -> None:
    """Piece k of every batch is what epoch e · K + k has there; resuming and reading a single batch as well."""
    place = {"rank": rank, "world_size": world_size}
    alone = [
        [rows_of(batch) for batch in train_batches(manifest, epoch=2 * 3 + member, **place)]
        for member in range(3)
    ]
    expected = [[row for part in parts for row in part] for parts in zip(*alone, strict=True)]
    batches = train_batches(manifest, epoch=2, ensemble_size=3, **place)
    assert [rows_of(batch) for batch in batches] == expected
    assert rows_of(batches.read(4)) == expected[4]
    rest = train_batches(manifest, epoch=2, ensemble_size=3, start_batch=5, **place)
    assert [rows_of(batch) for batch in rest] == expected[5:]


@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 64), (3, 64), (4, 500), (7, 10)])
def test_an_evaluation_gives_every_row_once(manifest: Manifest, world_size: int, batch_size: int) -> None:
    """In order over the ranks, every rank in the same number of batches, all of one size."""
    ranks = [
        list(EvalBatches(manifest, "val", FEATURES, batch_size=batch_size, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    found = [row for batches in ranks for batch in batches for row in rows_of(batch)]
    assert found == written(manifest, "val", FEATURES)
    assert len({len(batches) for batches in ranks}) == 1
    assert {len(batch.supervision) for batches in ranks for batch in batches} == {batch_size}


@pytest.mark.parametrize("features", [FEATURES, ONE_HOT, ["m0"], []])
def test_padding_is_zeros_and_empty_bags(manifest: Manifest, features: list[str]) -> None:
    """A short batch, and one without any row, have the shape of a full one."""
    ranks = [
        EvalBatches(manifest, "val", features, batch_size=1, rank=rank, world_size=3) for rank in range(3)
    ]
    last = [list(batches)[-1] for batches in ranks]
    short = next(iter(EvalBatches(manifest, "val", features, batch_size=600)))
    assert [batch.num_valid for batch in last] == [0, 1, 1]
    for batch in (last[0], short):
        assert batch.dense_features.shape == (len(batch.supervision), 3)
        assert batch.dense_features[batch.num_valid :].count_nonzero() == 0
        assert batch.supervision.labels[:, batch.num_valid :].count_nonzero() == 0
        lengths = batch.sparse_features.lengths().view(len(features), len(batch.supervision))
        assert lengths[:, batch.num_valid :].count_nonzero() == 0
        assert batch.sparse_features.stride() == len(batch.supervision)


@pytest.mark.parametrize("features", [FEATURES, ONE_HOT, ["m0"]])
def test_a_jagged_tensor_knows_its_lengths_beforehand(manifest: Manifest, features: list[str]) -> None:
    """What it was told (to save a sync a step) is what it would have found out itself."""
    for batches in (
        train_batches(manifest, features),
        EvalBatches(manifest, "val", features, batch_size=300),
    ):
        for batch in batches:
            told = batch.sparse_features
            plain = type(told)(
                keys=told.keys(), values=told.values(), lengths=told.lengths(), stride=told.stride()
            )
            assert plain.length_per_key() == told._length_per_key
            assert plain.offset_per_key() == told._offset_per_key
            assert told.keys() == features
            assert told.values().dtype == told.lengths().dtype == torch.int32


def test_a_batch_moves_with_all_its_tensors(manifest: Manifest) -> None:
    """To another device; the meta device stands for one here."""
    batch = next(iter(train_batches(manifest)))
    moved = batch.to(torch.device("meta"), non_blocking=True)
    tensors = [
        moved.dense_features,
        moved.supervision.labels,
        moved.supervision.weights,
        moved.sparse_features.values(),
        moved.sparse_features.lengths(),
    ]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert moved.num_valid == batch.num_valid
    assert moved.sparse_features._length_per_key == batch.sparse_features._length_per_key


def test_lengths_of_one_hot_features_and_weights_of_one_are_moved_to_a_device_once(
    manifest: Manifest,
) -> None:
    """All whole batches there share them; a padded batch has its own."""
    device = torch.device("meta")
    first, second, *_ = train_batches(manifest, ONE_HOT)
    moved = [batch.to(device).sparse_features for batch in (first, second)]
    assert moved[0].lengths() is moved[1].lengths()
    assert moved[0].values() is not moved[1].values()
    assert first.to(device).supervision.weights is second.to(device).supervision.weights
    assert first.sparse_features.lengths().unique().tolist() == [1]
    padded = list(EvalBatches(manifest, "val", ONE_HOT, batch_size=300))[-1]
    assert padded.num_valid < 300
    assert padded.to(device).sparse_features.lengths() is not moved[0].lengths()


@pytest.mark.parametrize("num_workers", [2, 5])
@pytest.mark.parametrize("features", [FEATURES, ONE_HOT])
def test_batches_do_not_depend_on_the_number_of_workers(
    manifest: Manifest, features: list[str], num_workers: int
) -> None:
    """Nor on how many batches are made beforehand."""
    alone = [rows_of(batch) for batch in train_batches(manifest, features)]
    loading = Loading(prefetch=1, num_workers=num_workers)
    assert [rows_of(batch) for batch in train_batches(manifest, features, loading=loading)] == alone


def test_gpu_batches_are_made_in_page_locked_memory(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that makes them has turned to the rank's GPU before it asks for the first such memory."""
    device, calls = torch.device("cuda", 3), list[str]()
    empty = torch.empty

    def record_empty(shape: Any, *, dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:
        calls.append(f"{threading.current_thread().name}: pinned {pin_memory}")
        return empty(shape, dtype=dtype)

    def record_device(device: torch.device) -> None:
        calls.append(f"{threading.current_thread().name}: {device}")

    monkeypatch.setattr(torch, "empty", record_empty)
    monkeypatch.setattr(torch.cuda, "set_device", record_device)
    with train_batches(manifest, loading=Loading(device=device)) as batches:
        next(iter(batches))
    thread = calls[0].removesuffix(": cuda:3")
    assert thread.startswith("prefetch")
    assert set(calls[1:]) == {f"{thread}: pinned True"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="page-locked memory and streams need a GPU")
def test_batches_are_page_locked_where_there_is_a_gpu(manifest: Manifest) -> None:
    """So that copies run beside other work; the copy on the GPU holds the same rows."""
    loading = Loading(device=torch.device("cuda", 0))
    batch = next(iter(train_batches(manifest, loading=loading)))
    assert batch.dense_features.is_pinned()
    assert batch.sparse_features.values().is_pinned()
    moved = batch.to(torch.device("cuda"), non_blocking=True)
    moved.record_stream(torch.cuda.current_stream())
    assert rows_of(moved.to(torch.device("cpu"))) == rows_of(batch)


def reading_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_leaving_ends_the_reading_thread(manifest: Manifest) -> None:
    """Though the loop inside stopped early."""
    with train_batches(manifest) as batches:
        next(iter(batches))
        assert reading_threads() != []
    assert reading_threads() == []


def test_forgetting_ends_the_reading_thread(manifest: Manifest) -> None:
    """Without ``with``, once nobody holds the batches any more."""
    batches = train_batches(manifest)
    next(iter(batches))
    assert reading_threads() != []
    del batches
    assert reading_threads() == []


def runtime(num_threads: int) -> Any:
    return SimpleNamespace(num_threads=num_threads, device=torch.device("meta"))


@pytest.mark.parametrize(("num_threads", "num_workers"), [(1, 1), (2, 1), (3, 1), (8, 4), (16, 8), (96, 8)])
def test_half_of_the_threads_decode_but_eight_at_most(num_threads: int, num_workers: int) -> None:
    assert choose_loading(4, None, runtime(num_threads)) == Loading(4, num_workers, torch.device("meta"))
    assert choose_loading(2, 30, runtime(num_threads)).num_workers == 30
