"""The pieces of a training step: their values on a GPU are the CPU's, and nothing in them waits for the GPU."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.loader.batch import Batch
from dlrm_app.loader.supervision import Supervision
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.build import build_model
from dlrm_app.model.loss import ClickTask
from dlrm_app.sharding.sharder import ExactMeanCollection
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS
from dlrm_app.training.instruments import LossMeter
from dlrm_app.training.optimizers import TouchedRows, make_dense_optimizer
from tests.cuda_without_gpu.make_believe import CPU, GPU, MakeBelieveGpu
from tests.model.test_parity import MODELS as KINDS
from tests.plain_training import compose_train
from tests.random_batches import NUM_DENSE, TABLES

ROWS, STEPS, WIDTH = 12, 3, 8
FEATURES = [name for table in TABLES for name in table.features]
MODELS = {
    **KINDS,
    "concat": ["model=concat", "model.bottom_mlp=[]"],
    "ensemble": ["model.ensemble_size=2"],
    "clipped": ["optimizer.dense.clip_norm=0.1"],
}


class LookedUp(nn.Module):
    """In the place of the sharded tables: what the exchange of pooled embeddings would bring."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.values = nn.Parameter(torch.randn(ROWS, len(FEATURES) * WIDTH, generator=generator))

    def forward(self, _: KeyedJaggedTensor) -> KeyedTensor:
        return KeyedTensor(FEATURES, [WIDTH] * len(FEATURES), self.values, key_dim=1)


def batch_on(device: torch.device) -> Batch:
    ids = torch.zeros(len(FEATURES) * ROWS, dtype=torch.int32)
    kjt = KeyedJaggedTensor(FEATURES, ids, lengths=torch.ones_like(ids), stride=ROWS)
    rows = torch.arange(ROWS * NUM_DENSE).view(ROWS, NUM_DENSE) / ROWS
    labels = torch.arange(ROWS) % 2.0
    return Batch(rows, kjt, Supervision.unweighted(labels[None]), ROWS).to(device)


def fresh_model(config: TrainConfig) -> nn.Module:
    model = build_model(ModelSpec(config.model, TABLES, NUM_DENSE, config.trainer.seed), CPU)
    model.sparse_arch.embedding_bag_collection = LookedUp()
    return model


class NoKernels(TorchDispatchMode):
    """Each operation of the block is an error."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"queues a kernel: {operation}")


def train(
    model: nn.Module, config: TrainConfig, device: torch.device, gpu: MakeBelieveGpu | None = None
) -> list[Any]:
    """Losses of steps whose rows are looked up already, their mean, the first bad step; no wait within the steps."""
    loss = ModelSpec(config.model, TABLES, NUM_DENSE).branch_loss
    task = ClickTask(model.to(device), device, config.trainer.precision == "bf16", branch_loss=loss)
    optimizer = make_dense_optimizer(config.optimizer.dense, list(task.parameters()))
    meter = LossMeter(Runtime(0, 0, 1, 1, device.type, num_threads=1))
    batch = batch_on(device)
    losses = []
    with gpu.refusing_waits() if gpu else nullcontext():
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            loss, (detached, *_) = task(batch)
            loss.backward()
            optimizer.step()
            with NoKernels():
                meter.add(detached, step)
            losses.append(detached)
    return [[loss.item() for loss in losses], meter.read(), meter.first_bad_step()]


@pytest.mark.parametrize("name", MODELS)
def test_the_dense_part_is_the_cpus_and_waits_for_nothing(name: str) -> None:
    config = compose_train(*MODELS[name])
    expected, model = train(fresh_model(config), config, CPU), fresh_model(config)
    with MakeBelieveGpu() as gpu:
        losses, mean, first_bad = train(model, config, GPU, gpu)
    # the CPU has kernels of its own for the interaction and the linear layers, which add in another order
    assert losses == pytest.approx(expected[0], rel=1e-6)
    assert mean == pytest.approx(expected[1], rel=1e-6)
    assert first_bad == expected[2]


class Divisors(ExactMeanCollection):
    """A collection of which only the division is there."""

    def __init__(self, device: torch.device) -> None:
        nn.Module.__init__(self)
        self._to_divide = {"f1", "f3"}
        self._embedding_names, self._embedding_dims = FEATURES, [WIDTH] * len(FEATURES)
        self._widths = torch.tensor(self._embedding_dims, device=device)
        self._rows = None


def test_mean_pooling_matches_the_cpu_without_later_waits() -> None:
    lengths = torch.arange(len(FEATURES) * ROWS) % 3
    kjt = KeyedJaggedTensor(
        FEATURES, torch.zeros(int(lengths.sum()), dtype=torch.int32), lengths=lengths, stride=ROWS
    )
    expected = Divisors(CPU)._divisor(kjt)
    with MakeBelieveGpu() as gpu:
        divisors, on_gpu = Divisors(GPU), kjt.to(GPU)
        divisors._divisor(on_gpu)
        with gpu.refusing_waits():
            found = divisors._divisor(on_gpu)
        assert torch.equal(found.cpu(), expected)


def test_a_batch_is_sent_and_nothing_else() -> None:
    """Three tensors and the lengths; one-hot ids need no offsets of the GPU."""
    with MakeBelieveGpu() as gpu:
        batch_on(GPU)
        assert gpu.waits == ["copy to the GPU"] * 4


@pytest.mark.parametrize("kind", SPARSE_OPTIMIZERS)
def test_a_dense_kernel_optimizer_waits_once_for_each_table(kind: str) -> None:
    """And steps as on CPU."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(9, 4, generator=generator) for _ in range(2)]
    gradients = [weight.roll(1) * (torch.arange(9) % 3 == 0).unsqueeze(1) for weight in weights]

    def step(device: torch.device) -> list[torch.Tensor]:
        tables = [nn.Parameter(weight.clone().to(device)) for weight in weights]
        optimizer = TouchedRows(tables, compose_train(f"optimizer={kind}").optimizer.sparse)
        for table, gradient in zip(tables, gradients, strict=True):
            table.grad = gradient.to(device)
        waits.clear()
        optimizer.step()
        return [table.detach() for table in tables]

    waits: list[str] = []
    expected = step(CPU)
    with MakeBelieveGpu() as gpu:
        waits = gpu.waits
        found = step(GPU)
        assert waits == ["nonzero"] * 2
        assert all(torch.equal(table.cpu(), on_cpu) for table, on_cpu in zip(found, expected, strict=True))
