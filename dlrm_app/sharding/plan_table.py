"""A plan as text: what each rank carries, and how and why each kind of table is sharded."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from dlrm_app.sharding.estimate import KINDS, Option
from dlrm_app.sharding.placement import Loads, Placed, imbalance
from dlrm_app.sharding.plan import EstimatedPlan
from dlrm_app.sharding.table_classes import fold, gib, label
from dlrm_app.sharding.topology import Cluster
from dlrm_app.tables import Table

MAX_RANKS = 16
"""Above so many, ranks are shown as smallest, mean and largest."""


def plan_text(plan: EstimatedPlan) -> str:
    """Both tables, and the balance in a line."""
    loads = plan.loads
    return "\n".join(
        [
            f"sharding plan for {plan.cluster}, estimated:",
            *rank_lines(loads, plan.cluster),
            balance_line(loads),
            *_aligned(table_rows(plan), right=(1, 2, 4, 5)),
        ]
    )


def balance_line(loads: Loads) -> str:
    """Largest over mean, of time and memory."""
    return (
        f"balance (largest/mean): time {imbalance(loads.time):.3f}, memory {imbalance(loads.device):.3f}; "
        f"{loads.time.max():.3g} ms a step on the slowest rank"
    )


def rank_lines(loads: Loads, cluster: Cluster) -> list[str]:
    """Memory by kind and time of every rank, or of the smallest, mean and largest if there are many."""
    columns = [*loads.memory.T, loads.device, *([loads.host] if loads.host.any() else [])]
    headings = ["rank", *KINDS, "sum", *(["host"] if loads.host.any() else []), "share", "ms a step"]
    share = loads.device / cluster.usable
    if cluster.num_ranks <= MAX_RANKS:
        rows = [
            [str(r), *(gib(c[r]) for c in columns), f"{share[r]:.0%}", f"{loads.time[r]:.3g}"]
            for r in range(cluster.num_ranks)
        ]
    else:
        rows = [
            [name, *(gib(of(c)) for c in columns), f"{of(share):.0%}", f"{of(loads.time):.3g}"]
            for name, of in (("smallest", np.min), ("mean", np.mean), ("largest", np.max))
        ]
    return _aligned([headings, *rows])


def table_rows(plan: EstimatedPlan) -> list[list[str]]:
    """Headings, then a row for all tables of one shape that are sharded alike."""
    slowest = float(plan.loads.time.max())
    rows = [["tables", "rows", "dim", "sharding", "shards", "GiB", "why"]]
    for _, members in fold(list(plan.work.tables.values())):
        alike: dict[str, list[Table]] = defaultdict(list)
        for table in members:
            alike[plan.assignment[table.name].option.label].append(table)
        for way, tables in alike.items():
            first = tables[0]
            placed = plan.assignment[first.name]
            rows.append(
                [
                    label(tables),
                    f"{first.rows:,}",
                    str(first.dim),
                    way,
                    str(len(placed.ranks)),
                    gib(sum(table.num_bytes for table in tables)).removesuffix(" GiB"),
                    reason(placed, plan.options.get(first.name, ()), plan.cluster, slowest),
                ]
            )
    return rows


def reason(placed: Placed, options: Sequence[Option], cluster: Cluster, slowest: float) -> str:
    """Why a table is sharded the way it is, in a few words."""
    chosen = placed.option
    if not options:
        return "as the plan's file says"
    if len(options) == 1:
        return "nothing else is allowed"
    cheapest = min(options, key=lambda way: way.total_time)
    if chosen is cheapest:
        return "costs least time"
    if (cheapest.device > cluster.usable).any():
        return f"{gib(float(cheapest.device.max()))} is too much for one rank"
    if cheapest.time.max() > slowest:
        return f"{cheapest.time.max():.3g} ms is too much for one rank"
    if chosen.device.sum() < cheapest.device.sum():
        return "saves memory that others need"
    return "spreads the load"


def _aligned(rows: Sequence[Sequence[str]], right: Sequence[int] | None = None) -> list[str]:
    """Columns of equal width; all but the first to the right, or those of ``right``."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    to_right = range(1, len(widths)) if right is None else right
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if k in to_right else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
