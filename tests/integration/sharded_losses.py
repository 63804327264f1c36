"""What every rank does of a sharded run: 10 steps of each case, to its global losses and last weights."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.model.initial_weights import local_parts, table_weights
from dlrm_app.tables.table import Table, table_of
from dlrm_app.training.setup import Trainable
from tests.composed import compose_config
from tests.random_batches import NUM_DENSE, TABLES, draw, to_batch
from tests.trainable import trainable_of

NUM_STEPS, BATCH = 10, 32
PARITY_TABLES = [
    *TABLES,
    Table("sums", 60, 8, ("f3_sum",)),
    Table("means", 40, 8, ("f3_mean",), pooling="mean"),
]
"""Of each pooling, one-hot, multi-hot and shared; one with more rows than a block of initial weights."""

WIDE_TABLES = [
    Table("one", 100, 32, ("f1", "f2"), init="normal", init_scale=0.7),
    Table("many", 60, 32, ("f3",), init="normal", init_scale=0.7),
]
"""Far enough from 0 that rounding shows."""

MIXED = {
    "shared": "row_wise",
    "bags": "table_wise",
    "long": "table_row_wise",
    "sums": "data_parallel",
    "means": "row_wise",
}
COMMON = ["data.path=unused", "model.bottom_mlp=[16]", "model.top_mlp=[16]", "optimizer.dense.clip_norm=0.1"]


def wishes(sharding_type: str) -> str:
    """The override that shards all tables by ``sharding_type``, columns in two; or each in its own way: mixed."""
    types = MIXED if sharding_type == "mixed" else {"*": sharding_type}
    patterns = (f"{name}:{{types:[{kind}],min_partition:4}}" for name, kind in types.items())
    return f"sharding.tables={{{','.join(patterns)}}}"


def train_cases(cases: Sequence[tuple[str, ...]], runtime: Runtime) -> list[dict[str, Any]]:
    return [train_case(runtime, *case) for case in cases]


def train_case(
    runtime: Runtime, sharding_type: str, optimizer: str, collectives: str | None = None
) -> dict[str, Any]:
    """``collectives``: in how many bits embeddings and gradients travel, of the wide tables."""
    overrides = [*COMMON, "trainer.global_batch_size=64", f"optimizer={optimizer}", wishes(sharding_type)]
    tables = PARITY_TABLES if collectives is None else WIDE_TABLES
    if collectives is not None:
        overrides.append(f"sharding.collectives={{forward:{collectives},backward:{collectives}}}")
    return train_tables(runtime, overrides, tables)


def train_tables(runtime: Runtime, overrides: Sequence[str], tables: Sequence[Table]) -> dict[str, Any]:
    """The losses and last weights of NUM_STEPS steps."""
    config = compose_config("train", TrainConfig, overrides)
    trainable = trainable_of(config, tables, NUM_DENSE, runtime)
    steps = (draw(seed, BATCH, tables) for seed in range(NUM_STEPS))
    stream = (to_batch(*step, runtime.rank, runtime.world_size) for step in steps)
    losses = []
    for _ in range(NUM_STEPS):
        loss, *_ = trainable.pipeline.progress(stream)
        dist.all_reduce(loss)
        losses.append(float(loss) / runtime.world_size)
    return {"losses": losses, "weights": whole_tables(trainable) | dense_weights(trainable)}


def whole_tables(trainable: Trainable) -> dict[str, torch.Tensor]:
    """Every table by name, put together from its parts on all ranks."""
    by_name = {table.name: table for table in trainable.tables}
    held = dict(table_weights(trainable.model.state_dict(), by_name))
    tables = {}
    for name, table in sorted(by_name.items()):
        sums, counts = torch.zeros(table.rows, table.dim), torch.zeros(table.rows, table.dim)
        for part, row, column in local_parts(held[name]) if name in held else []:
            place = slice(row, row + part.shape[0]), slice(column, column + part.shape[1])
            sums[place] = part.detach()
            counts[place] = 1
        dist.all_reduce(sums)
        dist.all_reduce(counts)
        tables[name] = sums / counts  # replicated tables are there once a rank; what nobody holds turns nan
    return tables


def dense_weights(trainable: Trainable) -> dict[str, torch.Tensor]:
    state = trainable.model.state_dict()
    return {
        key.removeprefix("model."): value.detach().clone()
        for key, value in state.items()
        if table_of(key) is None
    }
