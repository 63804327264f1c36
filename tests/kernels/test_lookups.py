"""The compiled lookups beside torch's embedding bags."""

from collections.abc import Iterator, Sequence

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen

from dlrm_app.kernels import lookups as compiled_lookups
from dlrm_app.kernels.install import replace_operators
from tests.kernels import bags

DIMS = (8, 12, 64, 20)
"""Widths of whole lines of 16, and of more."""
BATCH = 333
POOLINGS = {PoolingMode.SUM: "sum", PoolingMode.MEAN: "mean"}


@pytest.fixture(autouse=True)
def _replaced() -> Iterator[None]:
    """One thread would leave all to fbgemm."""
    replace_operators()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def make_tables(
    pooling: PoolingMode = PoolingMode.SUM, precision: SparseType = SparseType.FP32
) -> SplitTableBatchedEmbeddingBagsCodegen:
    return bags.make_tables(DIMS, pooling_mode=pooling, weights_precision=precision)


def draw_bags(most: int, least: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return bags.draw_bags(torch.Generator().manual_seed(1), BATCH, most, least)


def pool_plainly(
    weights: Sequence[torch.Tensor], ids: torch.Tensor, offsets: torch.Tensor, mode: str
) -> torch.Tensor:
    return bags.pool_plainly([each.double() for each in weights], ids, offsets, mode).float()


@pytest.mark.parametrize("precision", [SparseType.FP32, SparseType.FP16])
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("most", [0, 1, 6])
def test_bags_are_pooled_as_torch_pools_them(
    pooling: PoolingMode, most: int, precision: SparseType, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    look_up = compiled_lookups.pool_rows
    monkeypatch.setattr(
        compiled_lookups, "pool_rows", lambda given: found.append(look_up(given)) or found[-1]
    )
    tables = make_tables(pooling, precision)
    ids, offsets = draw_bags(most)
    pooled = tables(ids, offsets)
    wanted = pool_plainly(tables.split_embedding_weights(), ids, offsets, POOLINGS[pooling])
    torch.testing.assert_close(pooled, wanted, rtol=1e-6, atol=1e-6)
    assert len(found) == 1
    assert torch.equal(found[0], pooled)


def test_one_id_gives_its_row_to_the_bit() -> None:
    tables = make_tables()
    ids, offsets = draw_bags(1, least=1)
    wanted = pool_plainly(tables.split_embedding_weights(), ids, offsets, "sum")
    assert torch.equal(tables(ids, offsets), wanted)


@pytest.mark.parametrize("precision", [SparseType.FP32, SparseType.FP16])
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("most", [1, 40])
def test_the_number_of_threads_does_not_change_a_bit(
    pooling: PoolingMode, precision: SparseType, most: int
) -> None:
    """One thread is fbgemm's."""
    found = []
    tables, drawn = make_tables(pooling, precision), draw_bags(most)
    for threads in (1, 2, 7):
        torch.set_num_threads(threads)
        found.append(tables(*drawn))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("number", [-2, 7, 1 << 40])
def test_an_id_outside_of_its_table_is_refused_by_fbgemm(number: int) -> None:
    tables = make_tables()
    tables.bounds_check_mode_int = BoundsCheckMode.NONE.value  # else they are 0 before
    ids, offsets = draw_bags(3, least=1)
    ids[BATCH // 2] = number
    with pytest.raises(RuntimeError, match=str(number)):
        tables(ids, offsets)


def test_weighted_bags_are_left_to_fbgemm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_lookups, "pool_rows", None)
    tables = make_tables()
    ids, offsets = draw_bags(2, least=1)
    halved = tables(ids, offsets, per_sample_weights=torch.full((len(ids),), 0.5))
    wanted = pool_plainly(tables.split_embedding_weights(), ids, offsets, "sum")
    torch.testing.assert_close(halved, wanted / 2, rtol=1e-6, atol=1e-6)
