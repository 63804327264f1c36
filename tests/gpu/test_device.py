"""What everything else needs of the device: ranks can use it, and fbgemm's kernels compute as torch does."""

from functools import partial

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    EmbeddingLocation,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from tests.gpu.conftest import DEVICE, ON_GPU, SECONDS, Note
from tests.ranks import CONTEXT, start_method, start_ranks, use_gpu

pytestmark = pytest.mark.gpu


def test_a_rank_can_use_the_device(record_property: Note) -> None:
    method = start_method().get_start_method()
    fault = use_gpu(CONTEXT) if ON_GPU else None
    record_property("ranks", method if fault is None else f"{method}, because forks cannot: {fault}")
    [fault] = start_ranks(partial(fault_of, DEVICE), 1, 1, SECONDS)
    if fault:
        pytest.fail(f"a rank ({method}) cannot use {DEVICE}: {fault}", pytrace=False)


def fault_of(device: str) -> str | None:
    """The first line of the error of the smallest computation on ``device``."""
    try:
        torch.zeros(1, device=device).cpu()
    except Exception as error:
        return f"{error}".partition("\n")[0]
    return None


LR, ROWS, DIM, BATCH = 0.5, 402, 16, 64
PLACES = ["DEVICE", "MANAGED", "MANAGED_CACHING"] if ON_GPU else ["HOST"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["EXACT_SGD", "EXACT_ROWWISE_ADAGRAD"])
def test_a_step_of_fbgemms_tables_is_torchs(kind: str, place: str, record_property: Note) -> None:
    [difference] = start_ranks(partial(step_difference, kind, place), 1, 1, SECONDS)
    record_property("weights differ by", f"{difference:.1e}")
    assert difference < 1e-5


def step_difference(kind: str, place: str) -> float:
    """The largest difference from torch's float64 of the second table's weights after a step.

    On a GPU the first table has no rows, as a rank's part of a table that row_wise cuts may have. fbgemm's CPU kernel
    takes such a table and the next for one.
    """
    torch.manual_seed(0)
    location = EmbeddingLocation[place]
    computes = ComputeDevice.CUDA if ON_GPU else ComputeDevice.CPU
    first = 0 if ON_GPU else 3
    bags = SplitTableBatchedEmbeddingBagsCodegen(
        [(first, 8, location, computes), (ROWS, DIM, location, computes)],
        optimizer=EmbOptimType[kind],
        learning_rate=LR,
        eps=1e-8,
    )
    before = torch.randn(ROWS, DIM)
    bags.split_embedding_weights()[1].copy_(before)
    ids = torch.randint(0, ROWS, (BATCH,))
    # the first table's bags are empty, the second's hold an id each
    offsets = torch.cat([torch.zeros(BATCH + 1, dtype=torch.int64), torch.arange(1, BATCH + 1)])
    output = bags(ids.to(DEVICE), offsets.to(DEVICE))
    assert torch.equal(output[:, 8:].cpu(), before[ids])
    gradient = torch.randn(BATCH, 8 + DIM)
    output.backward(gradient.to(DEVICE))
    bags.flush()
    step = torch.zeros(ROWS, DIM, dtype=torch.float64).index_add_(0, ids, gradient[:, 8:].double())
    if kind == "EXACT_ROWWISE_ADAGRAD":
        step /= step.square().mean(1, keepdim=True).sqrt() + 1e-8
    expected = before.double() - LR * step
    return float((bags.split_embedding_weights()[1].cpu().double() - expected).abs().max())
