"""Which tables take the dense kernel, and what is refused of tables because of it.

Under the dense kernel a table's gradient is as large as the table, and an optimizer beside the backward pass steps it.
"""

import logging
from collections.abc import Sequence

from dlrm_app.config.checks import one_of
from dlrm_app.config.optimizer import SparseSettings, sparse_problems
from dlrm_app.config.sharding import ShardingConfig
from dlrm_app.errors import ConfigError
from dlrm_app.sharding.constraints import by_cause, constraints_of
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS, table_settings
from dlrm_app.tables.specs import Table

logger = logging.getLogger(__name__)


def dense_kernel_tables(
    tables: Sequence[Table], settings: SparseSettings, sharding: ShardingConfig, device_type: str
) -> dict[str, str]:
    """The tables that take the dense kernel wherever their shards lie, and why: table name → reason.

    A table that the planner replicates takes it as well, there is no other for data_parallel.
    """
    reasons = {
        table.name: dense_kernel_reason(
            table_settings(table, settings), constraints_of(table, sharding).get("kernels"), device_type
        )
        for table in tables
    }
    return {name: reason for name, reason in reasons.items() if reason is not None}


def dense_kernel_reason(
    settings: SparseSettings, kernels: Sequence[str] | None, device_type: str
) -> str | None:
    """Why a table with these settings and ``kernels`` allowed takes the dense kernel; None: a fused one."""
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
    """Says which tables pay for a pass over all their rows in every step."""
    reasons = dense_kernel_tables(tables, settings, sharding, device_type)
    for line in by_cause((name, [reason]) for name, reason in reasons.items()):
        logger.info("%s, so every step passes over the whole table", line)


def table_problems(
    tables: Sequence[Table], settings: SparseSettings, sharding: ShardingConfig, device_type: str
) -> list[str]:
    """What the device or the tables' own settings do not allow of sparse optimizers, one problem a cause."""
    if unknown := one_of("optimizer.sparse.kind", settings.kind, tuple(SPARSE_OPTIMIZERS)):
        return unknown
    return by_cause((table.name, _table_problems(table, settings, sharding, device_type)) for table in tables)


def _table_problems(
    table: Table, settings: SparseSettings, sharding: ShardingConfig, device_type: str
) -> list[str]:
    try:
        chosen = table_settings(table, settings)
    except ConfigError as error:
        return error.problems
    problems = one_of("optimizer.kind", chosen.kind, tuple(SPARSE_OPTIMIZERS))
    problems += sparse_problems("optimizer", chosen) if table.optimizer else []
    if problems:
        return problems
    constraints = constraints_of(table, sharding)
    may_be_replicated = "data_parallel" in constraints.get("types", ())
    reason = dense_kernel_reason(chosen, constraints.get("kernels"), device_type)
    is_fused = reason is None and not may_be_replicated
    problems += _data_type_problems(table, is_fused, bool(chosen.stochastic_rounding), device_type)
    if chosen.max_gradient is not None and not is_fused:
        problems.append(
            "max_gradient needs an optimizer inside the backward pass: set it to null, or choose kind, weight_decay "
            "and sharding that are fused (docs/how-to/optimizers.md)"
        )
    if SPARSE_OPTIMIZERS[chosen.kind].scales_by_weights and table.init == "zeros":
        problems.append(
            f"{chosen.kind}'s steps are as long as a row's weights, so init zeros would never move: "
            "use init normal or uniform"
        )
    return problems


def _data_type_problems(table: Table, is_fused: bool, wants_rounding: bool, device_type: str) -> list[str]:
    """Why ``table`` cannot be trained in its data_type. ``wants_rounding``: stochastic_rounding is asked for."""
    if table.data_type == "bf16":
        return ["fbgemm 1.8 trains no bf16 tables, on CPU or CUDA: use data_type fp16 or fp32"]
    if table.data_type == "fp32":
        return []
    if not is_fused:
        return [
            "fp16 weights need an optimizer inside the backward pass, for beside it gradients and their squares "
            "would be fp16 too: use data_type fp32, or see docs/how-to/optimizers.md for what is fused"
        ]
    if wants_rounding and device_type == "cpu":
        return [
            "stochastic rounding exists on CUDA only, fbgemm rounds to the nearest fp16 value on CPU: "
            "set stochastic_rounding=null, or use data_type fp32"
        ]
    return []
