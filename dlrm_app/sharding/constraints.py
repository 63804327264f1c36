"""What may be done with each table: sharding types and compute kernels, from the configuration and the specs.

A table's own spec is asked first, then the patterns of ``sharding.tables`` (the last one that fits), then ``sharding``
itself: key by key.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import filter as matching
from typing import Any

from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import CacheParams, EmbeddingModuleShardingPlan, ShardingPlan

from dlrm_app.config.sharding import ShardingConfig
from dlrm_app.display.text import listed
from dlrm_app.tables.specs import Table, to_constraints

logger = logging.getLogger(__name__)

# These two train alike: row-wise Adagrad keeps one accumulator a row under both, while column-wise shards
# would each keep their own.
DEFAULT_TYPES = ["table_wise", "row_wise"]

COLUMN_TYPES = {"column_wise", "table_column_wise", "grid_shard"}
ROW_STATISTICS = {"rowwise_adagrad", "partial_rowwise_adam", "lamb", "partial_rowwise_lamb"}
"""Optimizers that reduce over a row: over a shard's part of it, where rows are split."""


def wishes_of(table: Table, sharding: ShardingConfig) -> dict[str, Any]:
    """What is asked for ``table``, by its spec, a pattern or all tables; null and what nobody asks for is left out."""
    for_all = {"types": sharding.types, "kernels": sharding.kernels}
    asked = [for_all, sharding.wishes(table.name), table.sharding]
    return {key: value for wishes in asked for key, value in wishes.items() if value is not None}


def table_constraints(
    tables: Sequence[Table], sharding: ShardingConfig, world_size: int
) -> dict[str, ParameterConstraints]:
    """What the planner may do with each table, by name."""
    types = DEFAULT_TYPES if world_size > 1 else ["table_wise"]
    constraints = {}
    for table in tables:
        wishes = wishes_of(table, sharding)
        chosen = to_constraints(replace(table, sharding=wishes), types, ["fused"])
        if wishes.get("kernels") == ["dense"]:
            chosen.compute_kernels = ["fused"]  # the planner's word for it: see use_dense_kernel
        if "data_parallel" in (chosen.sharding_types or ()):
            chosen.compute_kernels = [
                *(chosen.compute_kernels or ()),
                "dense",
            ]  # replicated tables have no other
        if "cache_load_factor" in wishes:
            chosen.cache_params = CacheParams(load_factor=wishes["cache_load_factor"])
        chosen.device_group = wishes.get("device_group")
        constraints[table.name] = chosen
    return constraints


def dense_by_wish(tables: Sequence[Table], sharding: ShardingConfig) -> frozenset[str]:
    """Names of the tables whose only kernel is to be dense: a torch optimizer steps them."""
    return frozenset(table.name for table in tables if wishes_of(table, sharding).get("kernels") == ["dense"])


def sharding_problems(tables: Sequence[Table], sharding: ShardingConfig, device_type: str) -> list[str]:
    """What ``device_type`` or the tables do not allow of the wishes, one problem a cause."""
    names = [table.name for table in tables]
    problems = [
        f"sharding.tables.{pattern} fits no table: they are {listed(names, 8)}"
        for pattern in sharding.tables
        if not matching(names, pattern)
    ]
    causes: dict[str, list[str]] = defaultdict(list)
    for table in tables:
        for cause in _causes(table, wishes_of(table, sharding), device_type):
            causes[cause].append(table.name)
    return [*problems, *(f"{_named(names)}: {cause}" for cause, names in causes.items())]


def _causes(table: Table, wishes: Mapping[str, Any], device_type: str) -> list[str]:
    kernels, causes = wishes.get("kernels", []), []
    if device_type == "cpu" and (uvm := [kernel for kernel in kernels if "uvm" in kernel]):
        causes.append(
            f"sharding kernel {uvm[0]} keeps weights in the host's memory for a GPU to read, and there is no GPU: on CPU "
            "they lie there anyway, leave kernels out or use fused"
        )
    if "cache_load_factor" in wishes and "fused_uvm_caching" not in kernels:
        causes.append(
            "cache_load_factor is of kernel fused_uvm_caching alone: add kernels: [fused_uvm_caching]"
        )
    group = wishes.get("device_group")
    if group not in (None, device_type):
        causes.append(
            f"device_group {group} asks for another kind of device than {device_type}, which all of this run's tables "
            "lie on: leave it out; kernels: [fused_uvm] keeps a table in the host's memory"
        )
    width = wishes.get("min_partition", table.dim)
    if width > table.dim:
        causes.append(f"min_partition={width} is wider than the table, {table.dim} columns: use that or less")
    return causes


def _named(names: Sequence[str]) -> str:
    return f"table{'s' if len(names) > 1 else ''} {listed(names, 3)}"


def warn_of_other_algorithms(plan: ShardingPlan, optimizers: Mapping[str, str]) -> None:
    """Says where a plan splits rows whose optimizer (table name → kind) reduces over whole rows elsewhere."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module_plan in plan.plan.values():
        assert isinstance(module_plan, EmbeddingModuleShardingPlan)
        for name, sharding in module_plan.items():
            is_split = sharding.sharding_spec and any(
                s.shard_offsets[1] for s in sharding.sharding_spec.shards
            )
            if is_split and sharding.sharding_type in COLUMN_TYPES and optimizers[name] in ROW_STATISTICS:
                found[sharding.sharding_type, optimizers[name]].append(name)
    for (kind, optimizer), names in found.items():
        logger.warning(
            "%s: %s reduces over the part of a row that a rank holds under %s, so this trains otherwise than unsplit "
            "rows would: choose table_wise or row_wise, or an optimizer without row statistics (docs/sharding.md)",
            _named(names),
            optimizer,
            kind,
        )


def use_dense_kernel(plan: ShardingPlan, names: frozenset[str]) -> None:
    """Gives the tables of ``names`` the dense kernel, wherever their shards lie.

    Done after planning: the kernel runs under every sharding type, but the planner's own check refuses it for
    all but data_parallel.
    """
    for module_plan in plan.plan.values():
        assert isinstance(module_plan, EmbeddingModuleShardingPlan)
        for name, sharding in module_plan.items():
            if name in names:
                sharding.compute_kernel = EmbeddingComputeKernel.DENSE.value
