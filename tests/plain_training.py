"""The same steps by the application on one rank and by plain torch, to be compared."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.errors import refuse_if
from dlrm_app.runs.checkpoint.progress import Progress
from dlrm_app.tables.table import Table, table_of
from dlrm_app.training.optimizers import LearningRates
from dlrm_app.training.setup import Trainable
from tests.composed import compose_config
from tests.plain_branches import training_loss
from tests.plain_model import PlainModel
from tests.plain_optimizers import DENSE, RowByRow
from tests.random_batches import NUM_DENSE, TABLES, draw, to_batch
from tests.trainable import trainable_of

SMALL = ["data.path=unused", "model.bottom_mlp=[16]", "model.top_mlp=[16]"]
NUM_STEPS, BATCH = 10, 32
Rates = Callable[[int], dict[str, float]]
"""From a step's number, the first being 1, to what "sparse" and "dense" learning rates are multiplied with."""


def compose_train(*overrides: str) -> TrainConfig:
    """A small model's configuration. Raises ConfigError as the command would."""
    config = compose_config("train", TrainConfig, [*SMALL, *overrides])
    refuse_if(config.problems())
    return config


def weights_of(trainable: Trainable) -> dict[str, torch.Tensor]:
    """Every weight of an unsplit model by its name, tables under their own names."""
    weights = {}
    for key, value in trainable.model.state_dict().items():
        name = key.removeprefix("model.")
        if table := table_of(name):
            (shard,) = value.local_shards()
            weights[f"bags.{table}.weight"] = shard.tensor.detach().clone()
        else:
            weights[name] = value.detach().clone()
    return weights


def plain_copy(trainable: Trainable, kind: str = "dlrm") -> PlainModel:
    weights = weights_of(trainable)
    dense = {name: value for name, value in weights.items() if not name.startswith("bags.")}
    plain = PlainModel(kind, trainable.tables, dense)
    for table in trainable.tables:
        plain.bags[table.name].weight.data.copy_(weights[f"bags.{table.name}.weight"])
    return plain


def run_sharded(trainable: Trainable, config: TrainConfig, steps: Sequence[Any]) -> torch.Tensor:
    """Losses of the application's steps, with its schedule as if the run ended with them."""
    rates = LearningRates(
        trainable.optimizer, trainable.tables, config.optimizer, config.schedule, len(steps), Progress()
    )
    stream = iter([to_batch(*step) for step in steps])
    losses = []
    for number in range(1, len(steps) + 1):
        rates.apply(number)
        losses.append(trainable.pipeline.progress(stream)[0])
    return torch.stack(losses)


def run_plain(
    plain: PlainModel,
    config: TrainConfig,
    steps: Sequence[Any],
    tables: Sequence[Table] = TABLES,
    rates: Rates = lambda step: {"sparse": 1.0, "dense": 1.0},
    forward_in: Callable[[], AbstractContextManager[Any]] = nullcontext,
    parts: int = 1,
) -> torch.Tensor:
    """Losses of plain torch's steps, each table with its own settings and stored in its own type.

    ``parts``: into how many the optimizers take every row to be cut.
    """
    sparse, dense = plain_optimizers(plain, config, tables, parts)
    return torch.stack(
        [
            step_plain(plain, config, sparse, dense, step, rates(number), forward_in)
            for number, step in enumerate(steps, start=1)
        ]
    )


SparseOptimizers = list[tuple[float, RowByRow]]


def plain_optimizers(
    plain: PlainModel, config: TrainConfig, tables: Sequence[Table], parts: int = 1
) -> tuple[SparseOptimizers, torch.optim.Optimizer]:
    """(learning rate, optimizer) of each table, and the dense part's."""
    sparse = []
    for table in tables:
        settings = replace(config.optimizer.sparse, **table.optimizer)
        stored_as = torch.float16 if table.data_type == "fp16" else torch.float32
        sparse.append((settings.lr, RowByRow([plain.bags[table.name].weight], settings, stored_as, parts)))
    parameters: list[nn.Parameter] = list(plain.dense.values())
    return sparse, DENSE[config.optimizer.dense.kind](parameters, config.optimizer.dense)


def step_plain(
    plain: PlainModel,
    config: TrainConfig,
    sparse: SparseOptimizers,
    dense: torch.optim.Optimizer,
    step: Any,
    factors: Mapping[str, float] = MappingProxyType({"sparse": 1.0, "dense": 1.0}),
    forward_in: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> torch.Tensor:
    """The loss of one step; ``factors`` of the learning rates."""
    rows, ids, labels = step
    plain.zero_grad(set_to_none=False)
    with forward_in():
        outputs = plain(rows, ids)
    loss = training_loss(plain.kind, outputs, labels)
    loss.backward()
    if config.optimizer.dense.clip_norm is not None:
        clip_by_hand(list(plain.dense.values()), config.optimizer.dense.clip_norm)
    for lr, optimizer in sparse:
        optimizer.lr = lr * factors["sparse"]
        optimizer.step()
    dense.param_groups[0]["lr"] = config.optimizer.dense.lr * factors["dense"]
    dense.step()
    return loss.detach()


def clip_by_hand(parameters: Sequence[nn.Parameter], clip_norm: float) -> None:
    """All gradients as one vector, made no longer than ``clip_norm``."""
    norm = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).norm()
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad *= min(1.0, clip_norm / float(norm))


def train_both(
    config: TrainConfig,
    tables: Sequence[Table] = TABLES,
    change_plain: Callable[[PlainModel], None] = lambda plain: None,
    **plain_options: Any,
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor], PlainModel]:
    """(our losses, plain torch's losses, our weights at the end, the plain model at the end)."""
    steps = [draw(seed, BATCH, tables) for seed in range(NUM_STEPS)]
    with start_runtime(num_threads=1) as runtime:
        trainable = trainable_of(config, tables, NUM_DENSE, runtime)
        plain = plain_copy(trainable, config.model.kind)
        change_plain(plain)
        losses = run_sharded(trainable, config, steps)
        weights = weights_of(trainable)
    return losses, run_plain(plain, config, steps, tables, **plain_options), weights, plain


def assert_trains_like_plain(config: TrainConfig, tables: Sequence[Table] = TABLES, **options: Any) -> None:
    """Same losses at every step and same weights at the end."""
    losses, plain_losses, weights, plain = train_both(config, tables, **options)
    torch.testing.assert_close(losses, plain_losses, rtol=1e-5, atol=1e-6)
    for table in tables:
        found, expected = weights[f"bags.{table.name}.weight"], plain.bags[table.name].weight.data
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-6)
    for name, value in plain.dense.items():
        torch.testing.assert_close(weights[name.replace("/", ".")], value.data, rtol=1e-4, atol=2e-6)
