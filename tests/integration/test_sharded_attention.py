"""Lists pooled by attention train like DIN in plain torch on several ranks, whatever the sharding."""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

from dlrm_app.config.sharding import UNPOOLED_TYPES
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
    Table("bags", 50, 8, ("f3_mean",), pooling="mean"),
    Table("shown", 100, 8, ("f3", "f1", "f3_b"), pooling=Attention("f1", (12,)), init="normal"),
    Table("few", 3, 8, ("f2", "f3_few"), pooling=Attention("f2", (6,), softmax=False), init="normal"),
]
"""Two attentive tables, one with fewer rows than there are ranks."""
QUICK = [
    ("row_wise", "rowwise_adagrad"),
    ("column_wise", "adagrad"),
    ("table_wise", "sgd"),
    ("data_parallel", "adam"),
    ("row_wise", "adam"),
]
MATRIX = [
    (kind, name)
    for kind in UNPOOLED_TYPES
    for name in SPARSE_OPTIMIZERS
    if kind not in COLUMN_TYPES or not SPARSE_OPTIMIZERS[name].reduces_over_rows
]
DENSE = ["optimizer.dense.kind=sgd", "optimizer.dense.lr=0.1"]


def train_cases(cases: Sequence[tuple[str, str]], runtime: Runtime) -> list[dict[str, Any]]:
    return [
        train_tables(
            runtime,
            [*COMMON, *DENSE, "trainer.global_batch_size=64", f"optimizer={name}", wishes(kind)],
            TABLES,
        )
        for kind, name in cases
    ]


def assert_like_plain(cases: Sequence[tuple[str, str]], num_ranks: int) -> None:
    with start_runtime(num_threads=1) as runtime:
        config = compose_config("train", TrainConfig, COMMON)
        initial = plain_copy(trainable_of(config, TABLES, NUM_DENSE, runtime))
    steps = [draw(seed, BATCH, TABLES) for seed in range(NUM_STEPS)]
    for (kind, name), run in zip(cases, on_ranks(partial(train_cases, cases), num_ranks)[0], strict=True):
        plain = copy.deepcopy(initial)
        config = compose_config("train", TrainConfig, [*COMMON, *DENSE, f"optimizer={name}"])
        losses = run_plain(plain, config, steps, TABLES)
        pairs = {"losses": (torch.tensor(run["losses"]), losses)}
        pairs |= {t: (run["weights"][t], bag.weight.detach()) for t, bag in plain.bags.items()}
        pairs |= {
            w: (run["weights"][w.replace("/", ".")], value.detach()) for w, value in plain.dense.items()
        }
        far = [what for what, pair in pairs.items() if not torch.allclose(*pair, rtol=1e-5, atol=1e-5)]
        assert not far, f"{kind}, {name}"


@pytest.mark.slow
def test_two_ranks_train_like_plain_din() -> None:
    assert_like_plain(QUICK, 2)


@pytest.mark.long
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_every_sharding_and_optimizer_trains_like_plain_din(num_ranks: int) -> None:
    assert_like_plain(MATRIX, num_ranks)
