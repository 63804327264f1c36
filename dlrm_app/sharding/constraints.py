"""What may be done with each table: sharding types and compute kernels, from the configuration and the specs.

A table's own spec is asked first, then the patterns of ``sharding.tables`` (the last one that fits), then ``sharding``
itself: key by key.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import filter as matching
from typing import Any

from dlrm_app.config.sharding import ShardingConfig
from dlrm_app.tables.specs import Table
from dlrm_app.text import listed

# These two train alike: row-wise Adagrad keeps one accumulator a row under both, while column-wise shards
# would each keep their own.
DEFAULT_TYPES = ["table_wise", "row_wise"]


def constraints_of(table: Table, sharding: ShardingConfig) -> dict[str, Any]:
    """What is asked for ``table``, by its spec, a pattern or all tables; null and what nobody asks for is left out."""
    for_all = {"types": sharding.types, "kernels": sharding.kernels}
    sources = [for_all, sharding.pattern_constraints(table.name), table.sharding]
    return {key: value for source in sources for key, value in source.items() if value is not None}


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
    return [f"{table_names(tables)}: {cause}" for cause, tables in names.items()]


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


def table_names(names: Sequence[str]) -> str:
    """``tables a, b, …``."""
    return f"table{'s' if len(names) > 1 else ''} {listed(names)}"
