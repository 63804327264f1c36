"""Which rank holds which part of which table: torchrec's planner, told of this machine and of the specs' wishes."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    KernelConfig,
    PlannerError,
    TopologyFactory,
    TrainerConfig,
)
from torchrec.distributed.types import ShardingPlan

from dlrm_app.config.sharding import ShardingConfig, TopologyConfig
from dlrm_app.errors import DlrmError
from dlrm_app.runtime import Runtime
from dlrm_app.sharding.constraints import table_constraints, use_dense_kernel
from dlrm_app.sharding.sharder import AnyShardingSharder
from dlrm_app.tables import Table

RESERVED_SHARE = 0.15
"""Of a rank's memory, kept from the tables for the dense part, the batches in flight and the libraries."""


def make_plan(
    model: nn.Module,
    tables: Sequence[Table],
    dense_kernel_tables: frozenset[str],
    sharding: ShardingConfig,
    topology: TopologyConfig,
    local_batch_size: int,
    runtime: Runtime,
) -> ShardingPlan:
    """A plan for every EmbeddingBagCollection of ``model`` (on the meta device), the same on every rank.

    ``dense_kernel_tables``: names of tables whose optimizer fbgemm has not fused for this device.
    Raises DlrmError if the tables do not fit, naming what is needed, what there is, and what would help.
    """
    capacity = round(topology.memory_gib * 2**30) if topology.memory_gib else device_bytes(runtime)
    constraints = table_constraints(tables, sharding, runtime.world_size)
    planner = EmbeddingShardingPlanner(
        topology=_topology(runtime, capacity),
        batch_size=local_batch_size,
        constraints=constraints,
        storage_reservation=FixedPercentageStorageReservation(RESERVED_SHARE),
    )
    try:
        plan = planner.collective_plan(model, [AnyShardingSharder()], torch.distributed.GroupMember.WORLD)
    except PlannerError as error:
        raise DlrmError(_does_not_fit(tables, capacity, runtime, error)) from error
    use_dense_kernel(plan, dense_kernel_tables)
    return plan


def device_bytes(runtime: Runtime) -> int:
    """Bytes that one rank may use: its GPU's memory, or its share of this machine's."""
    if runtime.device.type == "cuda":
        return int(torch.cuda.get_device_properties(runtime.device).total_memory)
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(total, _control_group_limit() or total) // runtime.local_world_size


def _control_group_limit() -> int | None:
    """The memory that a container or a Slurm job allows, if it sets a limit."""
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        path = Path(name)
        if path.is_file() and (text := path.read_text().strip()).isdigit():
            return int(text)
    return None


def _topology(runtime: Runtime, capacity: int) -> Topology:
    memory = {"hbm_cap_bytes": capacity} if runtime.device.type == "cuda" else {"ddr_cap_bytes": capacity}
    ranks = TrainerConfig(runtime.world_size, runtime.local_world_size, **memory)
    return TopologyFactory.create_topology(ranks, kernel_config=KernelConfig(runtime.device.type))


def _does_not_fit(tables: Sequence[Table], capacity: int, runtime: Runtime, error: PlannerError) -> str:
    def gib(num_bytes: float) -> str:
        return f"{num_bytes / 2**30:.2f} GiB"

    largest = sorted(tables, key=lambda table: table.num_bytes, reverse=True)[:5]
    lines = "\n".join(f"    {t.name:<24} {t.rows:>13,} × {t.dim:<4} {gib(t.num_bytes):>12}" for t in largest)
    return (
        f"no sharding plan: the tables' weights need {gib(sum(table.num_bytes for table in tables))} in all, "
        f"{runtime.world_size} rank(s) have {gib(capacity)} each (before batches and optimizer state)\n"
        f"  the largest tables:\n{lines}\n"
        "  what may help: more ranks; sharding.types=[row_wise] to split tables over all ranks; a smaller "
        "tables.embedding_dim; tables.data_type=fp16; fewer rows (encoding.num_embeddings or encoding.min_count "
        "of dlrm-preprocess)\n"
        f"  the planner's words: {str(error).strip().splitlines()[0]}"
    )
