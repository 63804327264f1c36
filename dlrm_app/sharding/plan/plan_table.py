"""A plan as text: what each rank carries, and how and why each kind of table is sharded."""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from textwrap import indent

import numpy as np

from dlrm_app.sharding.cluster import Cluster
from dlrm_app.sharding.cost import KINDS, Option
from dlrm_app.sharding.plan.estimated_plan import EstimatedPlan
from dlrm_app.sharding.plan.table_classes import Shape, label, shape
from dlrm_app.sharding.planner.placement import Loads, Placed, imbalance
from dlrm_app.table import Cell, Column, Columns, Rows, share, text_table
from dlrm_app.tables.specs import Table
from dlrm_app.text import memory_text

logger = logging.getLogger(__name__)
MAX_TABLE_ROWS = 12
MAX_RANKS = 16
"""Above so many, ranks are shown as smallest, mean and largest."""
TABLE_COLUMNS: Columns = (
    *("tables", "rows", "dim"),
    Column("sharding", is_words=True),
    *("shards", "weights"),
    Column("why", is_words=True),
)
"""Of tables unlike in shape, rows, dim and shards are those of the largest."""


def log_plan(plan: EstimatedPlan) -> None:
    """Logs ``plan`` in brief."""
    logger.info(plan_text(plan, MAX_TABLE_ROWS))


def plan_text(plan: EstimatedPlan, max_table_rows: int | None = None) -> str:
    """What ranks carry, the balance, and how tables are sharded: those of one shape in a line.

    If that takes more than ``max_table_rows``, all tables sharded for one reason stand in a line.
    """
    rows = table_rows(plan)
    if max_table_rows is not None and len(rows) > max_table_rows:
        rows = table_rows(plan, fold_shapes=True)
    return "\n".join(
        [
            f"sharding plan for {plan.cluster}, estimated:",
            indent(text_table(*rank_rows(plan.loads, plan.cluster)), "  "),
            balance_line(plan.loads),
            indent(text_table(TABLE_COLUMNS, rows), "  "),
        ]
    )


def balance_line(loads: Loads) -> str:
    """Largest over mean, of time and memory."""
    return (
        f"balance (largest/mean): time {imbalance(loads.time):.3f}, memory {imbalance(loads.device):.3f}; "
        f"{loads.time.max():.3g} ms a step on the slowest rank"
    )


def rank_rows(loads: Loads, cluster: Cluster) -> tuple[Columns, Rows]:
    """Headings and rows: memory by kind and time of every rank, or of the smallest, mean and largest of many."""
    kinds = [
        *((kind, part) for kind, part in zip(KINDS, loads.memory.T, strict=True) if part.any()),
        ("in all", loads.device),
        *([("in the host", loads.host)] if loads.host.any() else []),
    ]
    headings = ["rank", *(name for name, _ in kinds), "of its memory", "ms a step"]
    used = loads.device / cluster.usable

    def row(name: str, pick: Callable[[np.ndarray], float]) -> list[str | Cell]:
        parts = [memory_text(pick(part)) for _, part in kinds]
        return [name, *parts, share(pick(used)), f"{pick(loads.time):.3g}"]

    if cluster.num_ranks > MAX_RANKS:
        rows = [row("smallest", np.min), row("mean", np.mean), row("largest", np.max)]
    else:
        rows = [row(str(rank), lambda part, rank=rank: part[rank]) for rank in range(cluster.num_ranks)]  # type: ignore[misc]
    return headings, rows


def table_rows(plan: EstimatedPlan, *, fold_shapes: bool = False) -> list[list[str]]:
    """A row of TABLE_COLUMNS for all tables of one shape that are sharded alike, or of all shapes."""
    alike: dict[tuple[Shape | None, str, str], list[Table]] = defaultdict(list)
    reasons = _reasons(plan)
    for table in plan.work.tables.values():
        key = (None if fold_shapes else shape(table), *reasons[table.name])
        alike[key].append(table)
    rows = []
    for (_, sharding, why), tables in alike.items():
        largest = max(tables, key=lambda table: table.num_bytes)
        num_shards = str(len(plan.assignment[largest.name].ranks))
        weights = memory_text(sum(table.num_bytes for table in tables))
        rows.append(
            [label(tables), f"{largest.rows:,}", str(largest.dim), sharding, num_shards, weights, why]
        )
    return rows


def _reasons(plan: EstimatedPlan) -> dict[str, tuple[str, str]]:
    """Table name → how it is sharded, and why."""
    slowest = float(plan.loads.time.max())
    return {
        name: (placed.option.label, reason(placed, plan.options.get(name, ()), plan.cluster, slowest))
        for name, placed in ((name, plan.assignment[name]) for name in plan.work.tables)
    }


def reason(placed: Placed, options: Sequence[Option], cluster: Cluster, slowest: float) -> str:
    """Why a table is sharded as it is, in a few words."""
    chosen = placed.option
    if not options:
        return "as the plan's file says"
    if len(options) == 1:
        return "nothing else is allowed"
    cheapest = min(options, key=lambda option: option.total_time)
    if chosen is cheapest:
        return "costs least time"
    if (cheapest.device > cluster.usable).any():
        return f"{memory_text(float(cheapest.device.max()))} is too much for one rank"
    if cheapest.time.max() > slowest:
        return f"{cheapest.time.max():.3g} ms is too much for one rank"
    if chosen.device.sum() < cheapest.device.sum():
        return "saves memory that others need"
    return "spreads the load"
