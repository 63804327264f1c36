"""The compiled updates beside torch's embedding bags and the rules as papers write them, in float64."""

import numpy as np
import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from dlrm_app.kernels import rows as compiled_rows
from dlrm_app.kernels import updates as compiled_updates
from dlrm_app.kernels.install import replace_operators
from dlrm_app.kernels.updates import _BAG, _sort

ROWS, DIMS, FEATURE_TABLES = (7, 5_000, 3, 40), (8, 12, 32, 4), (0, 1, 1, 2, 3)
"""Of four tables; the second is read by two features."""
BATCH, LR, EPS = 33, 0.1, 1e-6
KINDS = (EmbOptimType.EXACT_SGD, EmbOptimType.EXACT_ADAGRAD, EmbOptimType.EXACT_ROWWISE_ADAGRAD)


@pytest.fixture(autouse=True, scope="module")
def _replaced() -> None:
    replace_operators()


def make_tables(
    kind: EmbOptimType, pooling: PoolingMode, precision: SparseType = SparseType.FP32
) -> SplitTableBatchedEmbeddingBagsCodegen:
    torch.manual_seed(0)
    specs = [
        (rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for rows, dim in zip(ROWS, DIMS, strict=True)
    ]
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        specs,
        feature_table_map=list(FEATURE_TABLES),
        optimizer=kind,
        pooling_mode=pooling,
        weights_precision=precision,
        learning_rate=LR,
        eps=EPS,
    )
    tables.init_embedding_weights_uniform(-1, 1)
    return tables


def draw_bags(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids [N], offsets [F · B + 1]); a bag has 0 to 3 ids, which may be equal."""
    lengths = torch.randint(4, (len(FEATURE_TABLES), BATCH), generator=generator)
    ids = [
        torch.randint(ROWS[table], (int(lengths[feature].sum()),), generator=generator)
        for feature, table in enumerate(FEATURE_TABLES)
    ]
    return torch.cat(ids), torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])


def train(
    kind: EmbOptimType, pooling: PoolingMode, precision: SparseType = SparseType.FP32, steps: int = 4
) -> list[torch.Tensor]:
    tables, generator = make_tables(kind, pooling, precision), torch.Generator().manual_seed(1)
    for _ in range(steps):
        pooled = tables(*draw_bags(generator))
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
        ids, offsets = draw_bags(generator)
        pooled = []
        for feature, table in enumerate(FEATURE_TABLES):
            bags = offsets[feature * BATCH : (feature + 1) * BATCH + 1]
            mode = "mean" if pooling == PoolingMode.MEAN else "sum"
            its_ids = ids[bags[0] : bags[-1]]
            pooled.append(
                torch.nn.functional.embedding_bag(
                    its_ids, weights[table], bags - bags[0], mode=mode, include_last_offset=True
                )
            )
        out = torch.cat(pooled, dim=1)
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
    bags = np.arange(501)
    keys, spare = np.empty((2, 500), np.int64)
    _sort(ids, bags, 90, largest + 1, keys, spare)
    order = np.argsort(ids, kind="stable")
    np.testing.assert_array_equal(keys >> 32, ids[order])
    np.testing.assert_array_equal(keys & _BAG, 90 + order)


def test_ids_outside_the_table_touch_no_memory() -> None:
    keys, spare = np.empty((2, 4), np.int64)
    _sort(np.array([5, -1, 2, 3]), np.arange(5), 0, 3, keys, spare)
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
def test_nothing_of_it_is_left_to_fbgemm(
    kind: EmbOptimType, precision: SparseType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on one thread, and not where bags hold several ids."""
    if precision == SparseType.FP16 and not compiled_rows._converts_halves():
        pytest.skip("this CPU has no instructions for float16")
    updated = []
    monkeypatch.setattr(compiled_updates, "_update", lambda rule, *_: updated.append(rule))
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
