"""Tables of any rows and widths train like plain torch, also where ranks hold no row of some of them."""

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.sharding.planner import COLUMN_TYPES
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS
from dlrm_app.tables.table import Table
from tests.composed import compose_config
from tests.integration.sharded_losses import whole_tables
from tests.plain_training import plain_copy, run_plain
from tests.random_batches import NUM_DENSE, draw, to_batch
from tests.ranks import on_ranks
from tests.trainable import trainable_of

NUM_STEPS, BATCH = 4, 24
TYPES = ("row_wise", "table_row_wise", "table_wise", "column_wise", "grid_shard", "data_parallel")
Case = tuple[str, str, list[Table], dict[str, str]]
"""(optimizer, kernels, tables, table's name → sharding type)."""


def cases_of(num_ranks: int, count: int) -> list[Case]:
    """Random tables of 1 to 100 rows, many of them tiny, each sharded in its own way; every optimizer in turn."""
    random.seed(num_ranks)
    cases = []
    for number in range(count):
        optimizer = list(SPARSE_OPTIMIZERS)[number % len(SPARSE_OPTIMIZERS)]
        # where columns are cut, what reduces over a row is another algorithm
        types = [
            kind
            for kind in TYPES
            if not (SPARSE_OPTIMIZERS[optimizer].reduces_over_rows and kind in COLUMN_TYPES)
        ]
        tables, kinds = [], {}
        for place in range(random.randint(2, 6)):
            name, rows = f"t{place}", random.choice([random.randint(1, 8), random.randint(1, 100)])
            multi = "f3_" if random.random() < 0.4 else "f_"
            features = tuple(f"{multi}{place}_{n}" for n in range(random.randint(1, 2)))
            pooling = random.choice(["sum", "mean"])
            tables.append(
                Table(name, rows, random.choice([4, 8, 16, 32, 64]), features, pooling=pooling, init="normal")
            )
            kinds[name] = random.choice(["row_wise", random.choice(types)])
        cases.append(
            (optimizer, ("compiled", "libraries")[number // len(SPARSE_OPTIMIZERS) % 2], tables, kinds)
        )
    return cases


def config_of(case: Case) -> TrainConfig:
    optimizer, kernels, _, kinds = case
    types = ",".join(f"{name}:{{types:[{kind}],min_partition:4}}" for name, kind in kinds.items())
    overrides = ["data.path=unused", "model=concat", "model.top_mlp=[16,1]", f"optimizer={optimizer}"]
    overrides += [f"trainer.kernels={kernels}", f"sharding.tables={{{types}}}", "optimizer.sparse.lr=0.1"]
    return compose_config("train", TrainConfig, [*overrides, f"trainer.global_batch_size={BATCH}"])


def steps_of(tables: Sequence[Table]) -> list[Any]:
    return [draw(seed, BATCH, tables) for seed in range(NUM_STEPS)]


def train_sharded(cases: Sequence[Case], runtime: Runtime) -> list[dict[str, torch.Tensor]]:
    """Each case's tables after its steps."""
    found = []
    for case in cases:
        trainable = trainable_of(config_of(case), case[2], NUM_DENSE, runtime)
        stream = (to_batch(*step, runtime.rank, runtime.world_size) for step in steps_of(case[2]))
        for _ in range(NUM_STEPS):
            trainable.pipeline.progress(stream)
        dist.barrier()
        found.append(whole_tables(trainable))
    return found


def train_plain(case: Case) -> dict[str, torch.Tensor]:
    """The same with torch.nn.EmbeddingBag and float64 updates, from the same weights."""
    config = config_of((*case[:3], {}))  # on one rank, in whichever way
    with start_runtime(num_threads=1) as runtime:
        plain = plain_copy(trainable_of(config, case[2], NUM_DENSE, runtime), "concat")
    run_plain(plain, config, steps_of(case[2]), case[2])
    return {name: bag.weight.detach() for name, bag in plain.bags.items()}


def assert_like_plain(cases: list[Case], num_ranks: int) -> None:
    wrong = []
    for case, found in zip(cases, on_ranks(partial(train_sharded, cases), num_ranks)[0], strict=True):
        for name, expected in train_plain(case).items():
            if not torch.allclose(found[name], expected, rtol=1e-4, atol=1e-5):
                wrong.append((case, name, float((found[name] - expected).abs().max())))
    assert wrong == []


@pytest.mark.slow
def test_a_rank_without_rows_of_a_table_updates_the_next_one() -> None:
    """Five rows on four ranks are 2, 2, 1 and 0; the next table has another width."""
    tables = [Table("e", 5, 8, ("f_e",), init="normal"), Table("c", 402, 16, ("f_c",), init="normal")]
    kinds = {"e": "row_wise", "c": "row_wise"}
    ways = (
        ("sgd", "compiled"),
        ("rowwise_adagrad", "libraries"),
        ("adam", "compiled"),
        ("adam", "libraries"),
    )
    assert_like_plain([(optimizer, kernels, tables, kinds) for optimizer, kernels in ways], 4)


def test_a_rank_without_rows_of_any_table_takes_part() -> None:
    """fbgemm takes a group of tables without weights for one on a GPU."""
    tables = [Table("e", 1, 8, ("f_e",), init="normal"), Table("c", 40, 16, ("f_c",), init="normal")]
    assert_like_plain([("sgd", "libraries", tables, {"e": "row_wise", "c": "table_wise"})], 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "num_ranks", [2, *(pytest.param(number, marks=pytest.mark.long) for number in (1, 3, 4))]
)
def test_any_tables_train_like_plain_torch(num_ranks: int) -> None:
    assert_like_plain(cases_of(num_ranks, 2 * len(SPARSE_OPTIMIZERS)), num_ranks)
