"""Sharding plans: for DistributedModelParallel with estimated costs, and as text.

The text has the load of each rank and the sharding of each kind of table.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import indent
from typing import Any

import numpy as np
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import placement
from torchrec.distributed.types import (
    CacheParams,
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingPlan,
    ShardMetadata,
)
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from dlrm_app.sharding.cluster import Cluster
from dlrm_app.sharding.cost import KINDS, Workload
from dlrm_app.sharding.placement import Assignment, Placed, RankLoads, imbalance, rank_loads
from dlrm_app.table import Column, Columns, Rows, share, text_table
from dlrm_app.tables.bags import torch_name
from dlrm_app.tables.table import RENAMED, Table
from dlrm_app.text import memory_text, percent

logger = logging.getLogger(__name__)


@dataclass
class EstimatedPlan(ShardingPlan):
    """A ShardingPlan with its cluster, its assignment and the estimated loads of its ranks."""

    cluster: Cluster
    assignment: Assignment
    work: Workload

    @property
    def loads(self) -> RankLoads:
        """Estimated loads by rank."""
        return rank_loads(self.assignment, self.cluster.num_ranks)


def module_paths(model: nn.Module) -> dict[str, str]:
    """Table name → the path of torchrec's collection in ``model`` that holds it."""
    paths = {}
    for path, module in model.named_modules():
        held: list[Any] = []
        if isinstance(module, EmbeddingBagCollection):
            held = module.embedding_bag_configs()
        elif isinstance(module, EmbeddingCollection):
            held = module.embedding_configs()
        paths.update({table.name.removesuffix(RENAMED): path for table in held})
    return paths


def to_plan(
    assignment: Assignment, paths: Mapping[str, str], work: Workload, cluster: Cluster
) -> EstimatedPlan:
    """Turns ``assignment`` into torchrec's plan, with the caches from the tables' constraints."""
    constraints = work.constraints(cluster)
    plan: dict[str, EmbeddingModuleShardingPlan] = {}
    for name, path in paths.items():
        module_plan = plan.setdefault(path, EmbeddingModuleShardingPlan())
        module_plan[torch_name(name)] = _parameter(assignment[name], constraints[name], cluster)
    return EstimatedPlan(plan, cluster, assignment, work)


def _parameter(placed: Placed, constraints: ParameterConstraints, cluster: Cluster) -> ParameterSharding:
    option = placed.option
    shards = [
        ShardMetadata(
            shard_sizes=[int(n) for n in size],
            shard_offsets=[int(n) for n in offset],
            placement=placement(cluster.device, rank, cluster.devices_per_node),
        )
        for size, offset, rank in zip(option.sizes, option.offsets, placed.ranks, strict=True)
    ]
    cache = constraints.cache_params
    if option.load_factor is not None:
        cache = replace(cache or CacheParams(), load_factor=option.load_factor)
    return ParameterSharding(
        sharding_spec=None if option.sharding_type == "data_parallel" else EnumerableShardingSpec(shards),
        sharding_type=option.sharding_type,
        compute_kernel=option.kernel,
        ranks=list(placed.ranks),
        cache_params=cache,
    )


MAX_TABLE_ROWS = 30
"""Lines of the printed table."""
MAX_RANKS = 16
"""The most ranks that are listed one by one; for more, only the smallest, mean and largest loads are shown."""
TABLE_COLUMNS: Columns = ["tables", "rows", "dim", Column("sharding", is_words=True), "shards", "weights"]


def log_plan(plan: EstimatedPlan) -> None:
    """Logs a summary of ``plan``; one line if there is one rank."""
    if plan.cluster.num_ranks > 1:
        logger.info(plan_text(plan))
        return
    held = float(plan.loads.device[0])
    used = percent(held / plan.cluster.usable)
    logger.info(
        "tables and their optimizer take %s, %s of this rank's memory, estimated", memory_text(held), used
    )


def plan_text(plan: EstimatedPlan) -> str:
    """The plan as text: the loads of ranks, the balance (largest over mean), and the sharding of tables."""
    loads, num_ranks, rows = plan.loads, plan.cluster.num_ranks, _table_rows(plan)
    lines = [
        f"sharding plan for {plan.cluster}, estimated:",
        indent(_rank_table(loads, plan.cluster), "  "),
        f"balance (largest/mean): time {imbalance(loads.time):.3f}, memory {imbalance(loads.device):.3f}; "
        f"{loads.time.max():.3g} ms a step on the slowest rank",
    ]
    if empty := num_ranks - len({rank for placed in plan.assignment.values() for rank in placed.ranks}):
        lines.append(
            f"{empty:,} of {num_ranks:,} ranks hold no table: use fewer, or set sharding.types to row_wise"
        )
    lines.append(indent(text_table(TABLE_COLUMNS, rows[:MAX_TABLE_ROWS]), "  "))
    if len(rows) > MAX_TABLE_ROWS:
        lines.append(f"  … and {len(rows) - MAX_TABLE_ROWS} lines more: plan.yaml has every table")
    return "\n".join(lines)


def _rank_table(loads: RankLoads, cluster: Cluster) -> str:
    """A table of memory by kind and time for every rank, or the smallest, mean and largest values if there are many."""
    parts = [(kind, part) for kind, part in zip(KINDS, loads.memory.T, strict=True) if part.any()]
    parts += [("in all", loads.device), *([("in the host", loads.host)] if loads.host.any() else [])]
    # [columns, ranks]
    values = np.stack([*(part for _, part in parts), loads.device / cluster.usable, loads.time])
    shown = {str(rank): column for rank, column in enumerate(values.T)}
    if cluster.num_ranks > MAX_RANKS:
        shown = {"smallest": values.min(1), "mean": values.mean(1), "largest": values.max(1)}
    headings = ["rank", *(name for name, _ in parts), "of its memory", "ms a step"]
    rows: Rows = [
        [name, *map(memory_text, of_rank[:-2]), share(of_rank[-2]), f"{of_rank[-1]:.3g}"]
        for name, of_rank in shown.items()
    ]
    return text_table(headings, rows)


def _table_rows(plan: EstimatedPlan) -> list[list[str]]:
    """A row of TABLE_COLUMNS for each set of tables with one shape and one sharding."""
    by_shape: dict[tuple[object, ...], list[Table]] = defaultdict(list)
    for name, table in plan.work.tables.items():
        placed = plan.assignment[name]
        shape = (table.rows, table.dim, table.data_type, len(table.features))
        by_shape[(*shape, placed.option.label, len(placed.ranks))].append(table)
    return [
        [
            _label(tables),
            f"{rows:,}",
            str(dim),
            str(sharding),
            str(num_shards),
            memory_text(sum(t.num_bytes for t in tables)),
        ]
        for (rows, dim, _, _, sharding, num_shards), tables in by_shape.items()
    ]


def _label(tables: Sequence[Table]) -> str:
    """The name of one table, or the common stem of several and their number."""
    first = tables[0].name
    if len(tables) == 1:
        return first
    stems = {re.sub(r"\d+$", "", table.name) for table in tables}
    stem = f"{stems.pop()}*" if len(stems) == 1 else f"{first}, …"
    return f"{stem} ({len(tables)})"
