"""Frozen tables give several ranks the vectors of plain torch under every sharding that fits them."""

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from dlrm_app.config.sharding import SHARDING_TYPES
from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.tables.table import Table
from tests.composed import compose_config
from tests.integration.sharded_losses import BATCH, COMMON, NUM_STEPS, train_tables, wishes
from tests.plain_training import run_plain
from tests.plain_vectors import frozen_table, plain_with_vectors
from tests.random_batches import NUM_DENSE, draw
from tests.ranks import on_ranks
from tests.trainable import trainable_of

TYPES = [kind for kind in SHARDING_TYPES if kind != "data_parallel"]
QUICK = ["row_wise", "column_wise", "table_wise"]


def tables_in(folder: Path) -> list[Table]:
    return [
        Table("seen", 100, 8, ("f3_a", "f1"), init="normal"),
        frozen_table(folder, "text", 50, 16, ("f3_text", "f4"), "fp16", pooling="mean"),
        frozen_table(folder, "image", 40, 24, ("f3_image",)),
    ]


def train_cases(kinds: Sequence[str], tables: Sequence[Table], runtime: Runtime) -> list[dict[str, Any]]:
    words = [*COMMON, "optimizer=sgd", "trainer.global_batch_size=64"]
    return [train_tables(runtime, [*words, wishes(kind)], tables) for kind in kinds]


def assert_like_plain(folder: Path, kinds: Sequence[str], num_ranks: int) -> None:
    tables = tables_in(folder)
    config = compose_config("train", TrainConfig, [*COMMON, "optimizer=sgd"])
    with start_runtime(num_threads=1) as runtime:
        initial = plain_with_vectors(trainable_of(config, tables, NUM_DENSE, runtime))
    steps = [draw(seed, BATCH, tables) for seed in range(NUM_STEPS)]
    runs = on_ranks(partial(train_cases, kinds, tables), num_ranks)[0]
    for kind, run in zip(kinds, runs, strict=True):
        plain = copy.deepcopy(initial)
        losses = run_plain(plain, config, steps, [table for table in tables if not table.is_frozen])
        torch.testing.assert_close(torch.tensor(run["losses"]), losses, rtol=1e-5, atol=1e-6, msg=kind)
        for name, bag in plain.bags.items():
            found = run["weights"][name].to(bag.weight)
            torch.testing.assert_close(
                found, bag.weight.detach(), rtol=1e-5, atol=1e-6, msg=f"{kind}, {name}"
            )


@pytest.mark.slow
def test_two_ranks_look_up_frozen_tables_like_plain_torch(tmp_path: Path) -> None:
    assert_like_plain(tmp_path, QUICK, 2)


@pytest.mark.long
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_every_sharding_looks_up_frozen_tables_like_plain_torch(tmp_path: Path, num_ranks: int) -> None:
    assert_like_plain(tmp_path, TYPES, num_ranks)
