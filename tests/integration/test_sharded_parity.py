"""One, two and four ranks train like one process of plain torch, whatever the sharding."""

import copy
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import pytest
import torch

from dlrm_app.config.sharding import SHARDING_TYPES
from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.sharding.planner import COLUMN_TYPES
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS
from tests.composed import compose_config
from tests.integration.sharded_losses import BATCH, COMMON, NUM_STEPS, PARITY_TABLES, train_cases
from tests.plain_model import PlainModel
from tests.plain_training import plain_copy, run_plain
from tests.random_batches import NUM_DENSE, draw
from tests.ranks import on_ranks
from tests.trainable import trainable_of

MATRIX = [(kind, name) for kind in (*SHARDING_TYPES, "mixed") for name in SPARSE_OPTIMIZERS]
QUICK = [
    ("data_parallel", "partial_rowwise_adam"),
    ("table_wise", "rowwise_adagrad"),
    ("row_wise", "adagrad"),
    ("row_wise", "partial_rowwise_lamb"),
    ("column_wise", "adagrad"),
    ("column_wise", "rowwise_adagrad"),
    ("table_row_wise", "rowwise_adagrad"),
    ("table_column_wise", "adam"),
    ("grid_shard", "adagrad"),
    ("mixed", "rowwise_adagrad"),
    ("mixed", "sgd"),
]


def num_parts(kind: str, optimizer: str) -> int:
    """Where columns are cut, what an optimizer reduces over a row it reduces over parts of it: another algorithm."""
    return 2 if kind in COLUMN_TYPES and SPARSE_OPTIMIZERS[optimizer].reduces_over_rows else 1


@cache
def initial_model() -> PlainModel:
    """Of plain torch, with the application's first weights, which the optimizer has no part in."""
    config = compose_config("train", TrainConfig, COMMON)
    with start_runtime(num_threads=1) as runtime:
        return plain_copy(trainable_of(config, PARITY_TABLES, NUM_DENSE, runtime))


@cache
def plain_run(optimizer: str, parts: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """(losses, last weights) of the plain torch model from the same initial weights."""
    config = compose_config("train", TrainConfig, [*COMMON, f"optimizer={optimizer}"])
    plain = copy.deepcopy(initial_model())
    steps = [draw(seed, BATCH, PARITY_TABLES) for seed in range(NUM_STEPS)]
    losses = run_plain(plain, config, steps, PARITY_TABLES, parts=parts)
    weights = {name: bag.weight.detach() for name, bag in plain.bags.items()}
    weights |= {name.replace("/", "."): value.detach() for name, value in plain.dense.items()}
    return losses, weights


def sharded(
    cases: Sequence[tuple[str, ...]], num_ranks: int, ranks_per_node: int | None = None
) -> list[dict[str, Any]]:
    """What the first rank found of each case."""
    return on_ranks(partial(train_cases, cases), num_ranks, ranks_per_node)[0]


def differences(case: tuple[str, str], run: dict[str, Any]) -> list[str]:
    """Losses and weights of ``run`` that are further than 1e-5 from plain torch's."""
    losses, weights = plain_run(case[1], num_parts(*case))
    pairs = {"losses": (torch.tensor(run["losses"]), losses)}
    pairs |= {name: (run["weights"][name], value) for name, value in weights.items()}
    return [
        f"{' '.join(case)}: {name} differs by {(found - expected).abs().max():.2g}"
        for name, (found, expected) in pairs.items()
        if not torch.allclose(found, expected, rtol=1e-5, atol=1e-5)
    ]


def assert_like_plain(cases: list[tuple[str, str]], runs: list[dict[str, Any]]) -> None:
    assert [d for case, run in zip(cases, runs, strict=True) for d in differences(case, run)] == []


@pytest.mark.slow
def test_every_sharding_trains_like_plain_torch() -> None:
    """Losses of 10 steps and the weights after them; shared and multi-hot tables, and a clipped dense gradient."""
    assert_like_plain(QUICK, sharded(QUICK, 2))


@pytest.mark.long
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_every_sharding_and_optimizer_trains_like_plain_torch(num_ranks: int) -> None:
    assert_like_plain(MATRIX, sharded(MATRIX, num_ranks))


@pytest.mark.long
def test_node_sharding_types_train_like_plain_torch() -> None:
    """Four ranks that take themselves for two nodes of two, over gloo."""
    of_nodes = ("table_row_wise", "table_column_wise", "grid_shard", "mixed")
    cases = [case for case in MATRIX if case[0] in of_nodes]
    assert_like_plain(cases, sharded(cases, 4, ranks_per_node=2))
