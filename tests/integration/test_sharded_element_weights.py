"""Lists with weights train like plain torch on several ranks, whatever the sharding, beside attention and means."""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

from dlrm_app.config.sharding import SHARDING_TYPES
from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.sharding.planner import COLUMN_TYPES
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS
from dlrm_app.tables.table import Attention, Table
from tests.composed import compose_config
from tests.integration.sharded_losses import BATCH, COMMON, NUM_STEPS, train_tables, wishes
from tests.plain_training import plain_copy, run_plain
from tests.random_batches import NUM_DENSE, draw
from tests.ranks import on_ranks
from tests.trainable import trainable_of

TABLES = [
    Table("means", 50, 8, ("f3_mean",), pooling="mean"),
    Table("seen", 100, 8, ("f3_w", "f1"), init="normal", weighted=("f3_w",)),
    Table("few", 3, 8, ("f3_few_w",), init="normal", weighted=("f3_few_w",)),
]
SHOWN = Table("shown", 60, 8, ("f3_b", "f2"), pooling=Attention("f2", (6,)), init="normal")
QUICK = [
    ("row_wise", "rowwise_adagrad"),
    ("column_wise", "adagrad"),
    ("table_wise", "sgd"),
    ("data_parallel", "adam"),
    ("table_row_wise", "adam"),
    ("grid_shard", "sgd"),
]
MATRIX = [
    (kind, name)
    for kind in SHARDING_TYPES
    for name in SPARSE_OPTIMIZERS
    # a shard's part of a gradient may be all zeros, which plain torch's moments count as the row's step
    if kind not in COLUMN_TYPES or name in ("sgd", "adagrad")
]
DENSE = ["optimizer.dense.kind=sgd", "optimizer.dense.lr=0.1"]


def train_cases(
    cases: Sequence[tuple[str, str]], tables: Sequence[Table], runtime: Runtime
) -> list[dict[str, Any]]:
    words = [*COMMON, *DENSE, "trainer.global_batch_size=64"]
    return [
        train_tables(runtime, [*words, f"optimizer={name}", wishes(kind)], tables) for kind, name in cases
    ]


def assert_like_plain(cases: Sequence[tuple[str, str]], tables: Sequence[Table], num_ranks: int) -> None:
    with start_runtime(num_threads=1) as runtime:
        config = compose_config("train", TrainConfig, COMMON)
        initial = plain_copy(trainable_of(config, tables, NUM_DENSE, runtime))
    steps = [draw(seed, BATCH, tables) for seed in range(NUM_STEPS)]
    runs = on_ranks(partial(train_cases, cases, tables), num_ranks)[0]
    for (kind, name), run in zip(cases, runs, strict=True):
        plain = copy.deepcopy(initial)
        config = compose_config("train", TrainConfig, [*COMMON, *DENSE, f"optimizer={name}"])
        losses = run_plain(plain, config, steps, tables)
        pairs = {"losses": (torch.tensor(run["losses"]), losses)}
        pairs |= {t: (run["weights"][t], bag.weight.detach()) for t, bag in plain.bags.items()}
        far = [what for what, pair in pairs.items() if not torch.allclose(*pair, rtol=1e-5, atol=1e-5)]
        assert not far, f"{kind}, {name}"


@pytest.mark.slow
def test_two_ranks_train_like_plain_torch() -> None:
    assert_like_plain(QUICK, TABLES, 2)


@pytest.mark.slow
def test_attention_beside_weights_trains_like_plain_torch() -> None:
    assert_like_plain([("row_wise", "sgd"), ("table_wise", "sgd")], [*TABLES, SHOWN], 2)


@pytest.mark.long
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_every_sharding_and_optimizer_trains_like_plain_torch(num_ranks: int) -> None:
    assert_like_plain(MATRIX, TABLES, num_ranks)
