"""The compiled updates beside torch's embedding bags and the rules as papers write them, in float64."""

import numpy as np
import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen

from dlrm_app.kernels import rows as compiled_rows
from dlrm_app.kernels import updates as compiled_updates
from dlrm_app.kernels.install import replace_operators
from dlrm_app.kernels.updates import BAG, sort_with_bags
from tests.kernels import bags
from tests.kernels.bags import FEATURE_TABLES

DIMS = (8, 12, 32, 4)
BATCH, LR, EPS = 33, 0.1, 1e-6
KINDS = (EmbOptimType.EXACT_SGD, EmbOptimType.EXACT_ADAGRAD, EmbOptimType.EXACT_ROWWISE_ADAGRAD)


@pytest.fixture(autouse=True, scope="module")
def _replaced() -> None:
    replace_operators()


def make_tables(
    kind: EmbOptimType, pooling: PoolingMode, precision: SparseType = SparseType.FP32
) -> SplitTableBatchedEmbeddingBagsCodegen:
    how = {"optimizer": kind, "pooling_mode": pooling, "weights_precision": precision}
    return bags.make_tables(DIMS, learning_rate=LR, eps=EPS, **how)


def train(
    kind: EmbOptimType, pooling: PoolingMode, precision: SparseType = SparseType.FP32, steps: int = 4
) -> list[torch.Tensor]:
    tables, generator = make_tables(kind, pooling, precision), torch.Generator().manual_seed(1)
    for _ in range(steps):
        pooled = tables(*bags.draw_bags(generator, BATCH, most=3))
        pooled.backward(torch.randn(pooled.shape, generator=generator))
    return [weights.detach().clone() for weights in tables.split_embedding_weights()]


def train_plainly(
    kind: EmbOptimType, pooling: PoolingMode, precision: SparseType = SparseType.FP32, steps: int = 4
) -> list[torch.Tensor]:
    weights = [
        each.detach().double().requires_grad_()
        for each in make_tables(kind, pooling, precision).split_embedding_weights()
    ]
    sums, generator = [torch.zeros_like(each) for each in weights], torch.Generator().manual_seed(1)
    for _ in range(steps):
        mode = "mean" if pooling == PoolingMode.MEAN else "sum"
        out = bags.pool_plainly(weights, *bags.draw_bags(generator, BATCH, most=3), mode)
        gradients = torch.autograd.grad(out, weights, torch.randn(out.shape, generator=generator).double())
        with torch.no_grad():
            for each, total, gradient in zip(weights, sums, gradients, strict=True):
                square = gradient.square()
                total += (
                    square.mean(1, keepdim=True) if kind == EmbOptimType.EXACT_ROWWISE_ADAGRAD else square
                )
                is_sgd = kind == EmbOptimType.EXACT_SGD
                each -= LR * (gradient if is_sgd else gradient / (total.sqrt() + EPS))
                if precision == SparseType.FP16:
                    each.copy_(each.float().half())
    return [each.detach().float() for each in weights]


@pytest.mark.parametrize("pooling", [PoolingMode.SUM, PoolingMode.MEAN])
@pytest.mark.parametrize("kind", KINDS)
def test_tables_learn_as_plain_torch_says(kind: EmbOptimType, pooling: PoolingMode) -> None:
    for found, wanted in zip(train(kind, pooling), train_plainly(kind, pooling), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pooling", [PoolingMode.SUM, PoolingMode.MEAN])
@pytest.mark.parametrize("kind", KINDS)
def test_fp16_weights_are_the_nearest_after_each_step(kind: EmbOptimType, pooling: PoolingMode) -> None:
    """But for the few that lie half-way between two, where float32's rounding decides."""
    halves = train(kind, pooling, SparseType.FP16)
    wanted = train_plainly(kind, pooling, SparseType.FP16)
    found, plain = (
        torch.cat([each.flatten() for each in halves]),
        torch.cat([each.flatten() for each in wanted]),
    )
    assert found.dtype == torch.float16
    assert (found.float() != plain).float().mean() < 1e-3
    torch.testing.assert_close(found.float(), plain, rtol=2**-9, atol=1e-5)


@pytest.mark.parametrize("precision", [SparseType.FP32, SparseType.FP16])
@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_threads_does_not_change_a_bit(kind: EmbOptimType, precision: SparseType) -> None:
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 7):
        torch.set_num_threads(threads)
        found.append(train(kind, PoolingMode.SUM, precision))
    torch.set_num_threads(before)
    for one, two, seven in zip(*found, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, seven)


@pytest.mark.parametrize("largest", [0, 1, 2_047, 2_048, 1 << 23, (1 << 31) - 2])
def test_ids_of_any_size_are_sorted_with_their_bags(largest: int) -> None:
    generator = np.random.default_rng(largest)
    ids = generator.integers(largest + 1, size=500)
    ids[3] = largest
    keys, spare = np.empty((2, 500), np.int64)
    sort_with_bags(ids, np.arange(501), 90, largest + 1, keys, spare)
    order = np.argsort(ids, kind="stable")
    np.testing.assert_array_equal(keys >> 32, ids[order])
    np.testing.assert_array_equal(keys & BAG, 90 + order)


def test_ids_outside_the_table_touch_no_memory() -> None:
    keys, spare = np.empty((2, 4), np.int64)
    sort_with_bags(np.array([5, -1, 2, 3]), np.arange(5), 0, 3, keys, spare)
    assert keys.tolist() == [2 << 32 | 2, -1, -1, -1]
    tables = make_tables(EmbOptimType.EXACT_ADAGRAD, PoolingMode.SUM)
    before = [each.detach().clone() for each in tables.split_embedding_weights()]
    ids = torch.full((len(FEATURE_TABLES) * 2,), 1 << 20)
    gradient = torch.ones(2, sum(DIMS[table] for table in FEATURE_TABLES))
    torch.ops.fbgemm.split_embedding_backward_codegen_adagrad_cpu(
        gradient,
        *(tables.weights_host, tables.weights_placements, tables.weights_offsets, tables.D_offsets, 32),
        *(tables.hash_size_cumsum, 32, ids, torch.arange(len(ids) + 1), 0, None, True),
        *(tables.momentum1_host, tables.momentum1_placements, tables.momentum1_offsets, torch.tensor(LR)),
    )
    for each, weights in zip(before, tables.split_embedding_weights(), strict=True):
        assert torch.equal(each, weights)


@pytest.mark.parametrize("precision", [SparseType.FP32, SparseType.FP16])
@pytest.mark.parametrize("kind", KINDS)
def test_fbgemm_makes_none_of_these_updates(
    kind: EmbOptimType, precision: SparseType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on one thread, and not where bags hold several ids."""
    if precision == SparseType.FP16 and not compiled_rows.converts_halves():
        pytest.skip("this CPU has no instructions for float16")
    updated = []
    monkeypatch.setattr(compiled_updates, "update_tables", lambda rule, *_: updated.append(rule))
    train(kind, PoolingMode.SUM, precision, steps=2)
    assert updated == [KINDS.index(kind)] * 2


def test_weighted_bags_are_left_to_fbgemm() -> None:
    tables = make_tables(EmbOptimType.EXACT_ADAGRAD, PoolingMode.SUM)
    before = [each.detach().clone() for each in tables.split_embedding_weights()]
    ids = torch.zeros(len(FEATURE_TABLES), dtype=torch.int64)
    pooled = tables(ids, torch.arange(len(ids) + 1), per_sample_weights=torch.zeros(len(ids)))
    pooled.sum().backward()
    for each, weights in zip(before, tables.split_embedding_weights(), strict=True):
        assert torch.equal(each, weights)
