"""Constraints of each table: sharding types and compute kernels, from the configuration and the specs.

For each key a table's own spec counts first, then the patterns of ``sharding.tables`` (the last one that fits),
then ``sharding`` itself. Under the dense kernel a table's gradient is as large as the table, and an optimizer
outside the backward pass steps it. Nothing here imports torch.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import filter as matching
from fnmatch import fnmatchcase
from typing import Any

from dlrm_app.config.optimizer import SparseSettings
from dlrm_app.config.sharding import SHARDING_TYPES, UNPOOLED_TYPES, ShardingConfig
from dlrm_app.config.values import choice_problems
from dlrm_app.errors import ConfigError, Problem
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS, table_settings
from dlrm_app.tables.table import Table
from dlrm_app.text import listed

logger = logging.getLogger(__name__)

# These two train alike: row-wise Adagrad keeps one accumulator a row with both, while each column-wise shard
# would keep its own.
DEFAULT_TYPES = ["table_wise", "row_wise"]


WIDEST = 1024
"""The columns that fbgemm takes on a GPU; wider tables of vectors are cut by columns."""
COLUMN_TYPES = ("column_wise", "table_column_wise", "grid_shard")


def equal_part(dim: int) -> int:
    """The width of the parts, as few and as equal as may be, in which ``dim`` columns are taken: a multiple of 4."""
    num_parts = -(-dim // WIDEST)
    return -(-dim // (4 * num_parts)) * 4


def constraints_of(table: Table, sharding: ShardingConfig) -> dict[str, Any]:
    """Constraints of ``table`` from its spec, a pattern or the settings for all tables; null values are left out."""
    for_all = {"types": sharding.types, "kernels": sharding.kernels}
    patterns = (each for pattern, each in sharding.tables.items() if fnmatchcase(table.name, pattern))
    sources = [for_all, *patterns, table.sharding]
    return {key: value for source in sources for key, value in source.items() if value is not None}


def sharding_types_of(table: Table) -> Sequence[str]:
    """The sharding types that torchrec has for ``table``, in the order of SHARDING_TYPES."""
    if table.is_frozen:  # replicas are averaged by gradients, and a frozen table has none
        return [kind for kind in SHARDING_TYPES if kind != "data_parallel"]
    return UNPOOLED_TYPES if table.attention else SHARDING_TYPES


def sharding_problems(tables: Sequence[Table], sharding: ShardingConfig, device_type: str) -> list[Problem]:
    """Problems: constraints that ``device_type`` or the tables do not allow, one problem for each cause."""
    names = [table.name for table in tables]
    problems = [
        Problem(f"sharding.tables.{pattern}", "fits no table", f"they are {listed(names, 8)}")
        for pattern in sharding.tables
        if not matching(names, pattern)
    ]
    causes = ((table.name, _causes(table, constraints_of(table, sharding), device_type)) for table in tables)
    return [*problems, *by_cause(causes)]


def by_cause(causes: Iterable[tuple[str, Iterable[Problem]]]) -> list[Problem]:
    """(table name, its causes) as one problem for each cause, of ``tables a, b``."""
    found: dict[str, tuple[Problem, list[str]]] = {}
    for name, of_table in causes:
        for cause in of_table:
            found.setdefault(str(cause), (cause, []))[1].append(name)
    return [cause.within(table_names(tables)) for cause, tables in found.values()]


def _causes(table: Table, constraints: Mapping[str, Any], device_type: str) -> list[Problem]:
    kernels = constraints.get("kernels", [])
    causes: list[Problem] = []
    if device_type == "cpu" and (uvm := [kernel for kernel in kernels if "uvm" in kernel]):
        rule = "keeps weights in the host's memory for a GPU to read, and there is no GPU"
        causes.append(Problem(f"sharding kernel {uvm[0]}", rule, "leave kernels out or use fused"))
    if "cache_load_factor" in constraints and "fused_uvm_caching" not in kernels:
        rule = "needs the kernel fused_uvm_caching"
        causes.append(Problem("cache_load_factor", rule, "add kernels: [fused_uvm_caching]"))
    types = constraints.get("types", UNPOOLED_TYPES)
    if not {*types} & {*sharding_types_of(table)}:
        rule = "cannot shard a table that is pooled by attention: torchrec exchanges no single vectors so"
        if table.is_frozen:
            rule = "cannot shard a table that is not trained: replicas are averaged by their gradients"
        cure = f"use {', '.join(sharding_types_of(table))}"
        causes.append(Problem(f"sharding type {listed(types)}", rule, cure))
    if table.is_frozen and kernels == ["dense"]:
        rule = "is for tables that are trained, and this one is not"
        causes.append(Problem("sharding kernel dense", rule, "leave kernels out or use fused"))
    width = constraints.get("min_partition", table.dim)
    if width > table.dim:
        rule = f"is wider than the table, {table.dim} columns"
        causes.append(Problem(f"min_partition={width}", rule, "use that or less"))
    return causes


def table_names(names: Sequence[str]) -> str:
    """``tables a, b, …``."""
    return f"table{'s' if len(names) > 1 else ''} {listed(names)}"


def dense_kernel_tables(
    tables: Sequence[Table], settings: SparseSettings, sharding: ShardingConfig, device_type: str
) -> dict[str, str]:
    """Tables that take the dense kernel under every plan: table name → reason.

    A table that the planner replicates takes it too: data_parallel has no other kernel.
    """
    reasons = {}
    for table in tables:
        kernels = constraints_of(table, sharding).get("kernels")
        if reason := dense_kernel_reason(table_settings(table, settings), kernels, device_type):
            reasons[table.name] = reason
    return reasons


def dense_kernel_reason(
    settings: SparseSettings, kernels: Sequence[str] | None, device_type: str
) -> str | None:
    """The reason why a table with these settings and ``kernels`` takes the dense kernel; None for a fused one."""
    optimizer = SPARSE_OPTIMIZERS[settings.kind]
    if settings.updated_rows == "all":
        return f"{settings.kind} with updated_rows=all is not fused"
    if device_type not in optimizer.devices:
        return f"{settings.kind} is not fused on {device_type}"
    if settings.weight_decay and device_type not in optimizer.decay_devices:
        return f"{settings.kind} with weight_decay is not fused on {device_type}"
    if settings.weight_decay and settings.weight_decay_mode not in (None, optimizer.weight_decay_mode):
        return f"{settings.kind} with {settings.weight_decay_mode} weight_decay is not fused"
    if kernels == ["dense"]:
        return "kernels: [dense] is asked for"
    return None


def log_dense_kernel(
    tables: Sequence[Table], settings: SparseSettings, sharding: ShardingConfig, device_type: str
) -> None:
    """Logs which tables need a pass over all their rows in every step."""
    reasons = dense_kernel_tables(tables, settings, sharding, device_type)
    for reason in dict.fromkeys(reasons.values()):
        names = table_names([name for name in reasons if reasons[name] == reason])
        logger.info("%s: %s, so every step passes over the whole table", names, reason)


def table_problems(
    tables: Sequence[Table], settings: SparseSettings, sharding: ShardingConfig, device_type: str
) -> list[Problem]:
    """Problems: sparse optimizers that the device or the tables' own settings do not allow, one for each cause."""
    if unknown := choice_problems("optimizer.sparse.kind", settings.kind, tuple(SPARSE_OPTIMIZERS)):
        return unknown
    return by_cause((table.name, _table_problems(table, settings, sharding, device_type)) for table in tables)


def _table_problems(
    table: Table, settings: SparseSettings, sharding: ShardingConfig, device_type: str
) -> list[Problem]:
    try:
        chosen = table_settings(table, settings)
    except ConfigError as error:
        return error.problems
    problems = choice_problems("optimizer.kind", chosen.kind, tuple(SPARSE_OPTIMIZERS))
    problems += chosen.problems("optimizer.") if table.optimizer else []
    if problems:
        return problems
    if table.is_frozen:
        return []
    constraints = constraints_of(table, sharding)
    may_be_replicated = "data_parallel" in constraints.get("types", ())
    reason = dense_kernel_reason(chosen, constraints.get("kernels"), device_type)
    is_fused = reason is None and not may_be_replicated
    problems += _data_type_problems(table, is_fused, bool(chosen.stochastic_rounding), device_type)
    if chosen.max_gradient is not None and not is_fused:
        cure = (
            "set it to null, or choose kind, weight_decay and sharding that are fused "
            "(docs/how-to/optimizers.md)"
        )
        problems.append(Problem("max_gradient", "needs an optimizer inside the backward pass", cure))
    if SPARSE_OPTIMIZERS[chosen.kind].scales_by_weights and table.init == "zeros":
        rule = f"zeros would never move, because {chosen.kind}'s steps are as long as a row's weights"
        problems.append(Problem("init", rule, "use init normal or uniform"))
    return problems


def _data_type_problems(
    table: Table, is_fused: bool, wants_rounding: bool, device_type: str
) -> list[Problem]:
    """Reasons why ``table`` cannot be trained in its data_type. ``wants_rounding``: stochastic_rounding is set."""
    if table.data_type == "bf16":
        cure = "use data_type fp16 or fp32"
        return [Problem("data_type", "bf16 is not trained by fbgemm, on CPU or CUDA", cure)]
    if table.data_type == "fp32":
        return []
    if not is_fused:
        rule = (
            "fp16 needs an optimizer inside the backward pass, because outside it gradients and "
            "their squares would be fp16 too"
        )
        cure = "use data_type fp32, or see docs/how-to/optimizers.md for what is fused"
        return [Problem("data_type", rule, cure)]
    if wants_rounding and device_type == "cpu":
        rule = "exists on CUDA only, fbgemm rounds to the nearest fp16 value on CPU"
        return [Problem("stochastic_rounding", rule, "set stochastic_rounding=null, or use data_type fp32")]
    return []
