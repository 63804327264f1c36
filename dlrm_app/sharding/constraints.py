"""What may be done with each table: sharding types and compute kernels, from the configuration and the specs.

A table's own spec is asked first, then the patterns of ``sharding.tables`` (the last one that fits), then ``sharding``
itself: key by key.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import filter as matching
from typing import Any

from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import CacheParams, EmbeddingModuleShardingPlan, ShardingPlan

from dlrm_app.config.sharding import ShardingConfig
from dlrm_app.display.text import listed
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS
from dlrm_app.tables.specs import Table

logger = logging.getLogger(__name__)

# These two train alike: row-wise Adagrad keeps one accumulator a row under both, while column-wise shards
# would each keep their own.
DEFAULT_TYPES = ["table_wise", "row_wise"]

COLUMN_TYPES = {"column_wise", "table_column_wise", "grid_shard"}


def constraints_of(table: Table, sharding: ShardingConfig) -> dict[str, Any]:
    """What is asked for ``table``, by its spec, a pattern or all tables; null and what nobody asks for is left out."""
    for_all = {"types": sharding.types, "kernels": sharding.kernels}
    sources = [for_all, sharding.pattern_constraints(table.name), table.sharding]
    return {key: value for source in sources for key, value in source.items() if value is not None}


def planner_constraints(
    tables: Sequence[Table], sharding: ShardingConfig, dense_kernel: Collection[str], world_size: int
) -> dict[str, ParameterConstraints]:
    """What the planner may do with each table, by name. ``dense_kernel``: the tables that must take that kernel."""
    types = DEFAULT_TYPES if world_size > 1 else ["table_wise"]
    by_name = {}
    for table in tables:
        given = constraints_of(table, sharding)
        allowed_types = list(given.get("types") or types)
        kernels = ["dense"] if table.name in dense_kernel else list(given.get("kernels") or ["fused"])
        if "data_parallel" in allowed_types and "dense" not in kernels:
            kernels.append("dense")  # replicated tables have no other
        share = given.get("cache_load_factor")
        by_name[table.name] = ParameterConstraints(
            sharding_types=allowed_types,
            compute_kernels=kernels,
            min_partition=given.get("min_partition"),
            cache_params=None if share is None else CacheParams(load_factor=share),
            device_group=given.get("device_group"),
            feature_names=list(table.features),
            pooling_factors=table.expected_pooling_factors,
        )
    return by_name


def sharding_problems(tables: Sequence[Table], sharding: ShardingConfig, device_type: str) -> list[str]:
    """What ``device_type`` or the tables do not allow of the constraints, one problem a cause."""
    names = [table.name for table in tables]
    problems = [
        f"sharding.tables.{pattern} fits no table: they are {listed(names, 8)}"
        for pattern in sharding.tables
        if not matching(names, pattern)
    ]
    causes = ((table.name, _causes(table, constraints_of(table, sharding), device_type)) for table in tables)
    return [*problems, *by_cause(causes)]


def by_cause(causes: Iterable[tuple[str, Iterable[str]]]) -> list[str]:
    """(table name, what is to be said of it) as one line for each cause: ``tables a, b: cause``."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, of_table in causes:
        for cause in of_table:
            names[cause].append(name)
    return [f"{_tables(tables)}: {cause}" for cause, tables in names.items()]


def _causes(table: Table, constraints: Mapping[str, Any], device_type: str) -> list[str]:
    kernels, causes = constraints.get("kernels", []), []
    if device_type == "cpu" and (uvm := [kernel for kernel in kernels if "uvm" in kernel]):
        causes.append(
            f"sharding kernel {uvm[0]} keeps weights in the host's memory for a GPU to read, and there is no GPU: on CPU "
            "they lie there anyway, leave kernels out or use fused"
        )
    if "cache_load_factor" in constraints and "fused_uvm_caching" not in kernels:
        causes.append(
            "cache_load_factor is of kernel fused_uvm_caching alone: add kernels: [fused_uvm_caching]"
        )
    group = constraints.get("device_group")
    if group not in (None, device_type):
        causes.append(
            f"device_group {group} asks for another kind of device than {device_type}, which all of this run's tables "
            "lie on: leave it out; kernels: [fused_uvm] keeps a table in the host's memory"
        )
    width = constraints.get("min_partition", table.dim)
    if width > table.dim:
        causes.append(f"min_partition={width} is wider than the table, {table.dim} columns: use that or less")
    return causes


def _tables(names: Sequence[str]) -> str:
    return f"table{'s' if len(names) > 1 else ''} {listed(names)}"


def warn_of_other_algorithms(plan: ShardingPlan, optimizers: Mapping[str, str]) -> None:
    """Says where a plan splits rows whose optimizer (table name → kind) reduces over whole rows elsewhere."""
    split: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module_plan in plan.plan.values():
        assert isinstance(module_plan, EmbeddingModuleShardingPlan)
        for name, sharding in module_plan.items():
            is_split = sharding.sharding_spec and any(
                s.shard_offsets[1] for s in sharding.sharding_spec.shards
            )
            if (
                is_split
                and sharding.sharding_type in COLUMN_TYPES
                and SPARSE_OPTIMIZERS[optimizers[name]].reduces_over_rows
            ):
                split[sharding.sharding_type, optimizers[name]].append(name)
    for (kind, optimizer), names in split.items():
        logger.warning(
            "%s: %s reduces over the part of a row that a rank holds under %s, so this trains otherwise than unsplit "
            "rows would: choose table_wise or row_wise, or an optimizer without row statistics (docs/how-to/sharding.md)",
            _tables(names),
            optimizer,
            kind,
        )
