"""A plan's chart: what every rank carries, on one page that needs nothing from elsewhere."""

from html import escape

import numpy as np

from dlrm_app.display.axis import Axis, linear_axis
from dlrm_app.display.chart import Chart, charts_html
from dlrm_app.display.numbers import memory_text
from dlrm_app.display.page import facts, page
from dlrm_app.display.table import html_table
from dlrm_app.sharding.cost import KINDS
from dlrm_app.sharding.plan.estimated_plan import EstimatedPlan
from dlrm_app.sharding.plan.plan_table import TABLE_COLUMNS, table_rows
from dlrm_app.sharding.planner.placement import imbalance

STYLES = ("first solid", "second solid", "third solid", "fourth solid")
"""Of KINDS, in their order. Solid, because stacked areas must hide what is below."""


def plan_page(plan: EstimatedPlan, title: str) -> str:
    """The page: memory by kind and time of each rank, and the tables folded by shape."""
    sections = [
        charts_html([memory_chart(plan), time_chart(plan)], "plan"),
        "<h2>In figures</h2>",
        facts(_facts(plan)),
        "<h2>How tables are sharded, and why</h2>",
        html_table(TABLE_COLUMNS, table_rows(plan)),
    ]
    return page(
        title,
        "sharding plan",
        summary=escape(f"{len(plan.work.tables):,} tables on {plan.cluster}. Everything here is estimated."),
        content="\n".join(sections),
    )


def memory_chart(plan: EstimatedPlan) -> Chart:
    """Each rank's memory, stacked by kind, under the line of what tables may take."""
    loads, cluster = plan.loads, plan.cluster
    stacked = loads.memory.cumsum(1) / 2**30
    limit = cluster.usable / 2**30
    fullest = float(stacked[:, -1].max())
    is_near = fullest > limit / 4  # else the line would leave the marks no room
    axis = linear_axis([fullest, *([limit] if is_near else [])], label=_gib_tick, from_zero=True)
    note = f"{'Dashed: tables' if is_near else 'Tables'} may take {memory_text(cluster.usable)} of a rank."
    chart = Chart("Memory", _rank_axis(cluster.num_ranks), axis, note=note)
    edges = [float(rank) for rank in range(cluster.num_ranks + 1)]
    shown = [k for k in range(len(KINDS)) if loads.memory[:, k].any()]
    for k in reversed(shown):
        chart.steps(edges, stacked[:, k].tolist(), STYLES[k], KINDS[k])
    if is_near:
        chart.guide((0, limit), (cluster.num_ranks, limit))
    tips = [
        f"rank {rank}: {memory_text(loads.device[rank])}, "
        + ", ".join(f"{KINDS[k]} {memory_text(loads.memory[rank, k])}" for k in shown)
        for rank in range(cluster.num_ranks)
    ]
    chart.tips([(rank + 0.5, float(stacked[rank, -1])) for rank in range(cluster.num_ranks)], tips, "guide")
    return chart


def time_chart(plan: EstimatedPlan) -> Chart:
    """Each rank's time a step for its tables: lookup, update and what it sends."""
    time, num_ranks = plan.loads.time, plan.cluster.num_ranks
    axis = linear_axis(
        time.tolist(), label=lambda value, decimals: f"{value:,.{decimals}f} ms", from_zero=True
    )
    note = f"Dashed: the mean, {time.mean():.3g} ms."
    chart = Chart("Time a step, embeddings alone", _rank_axis(num_ranks), axis, note=note)
    edges = [float(rank) for rank in range(num_ranks + 1)]
    chart.steps(edges, time.tolist(), "first solid", "lookup, update, exchange")
    chart.guide((0, float(time.mean())), (num_ranks, float(time.mean())))
    tips = [f"rank {rank}: {value:.3g} ms" for rank, value in enumerate(time)]
    chart.tips([(rank + 0.5, float(value)) for rank, value in enumerate(time)], tips, "guide")
    return chart


def _rank_axis(num_ranks: int) -> Axis:
    axis = linear_axis([0, num_ranks], "rank", ends_on_ticks=False, smallest_step=1)
    return Axis(0, num_ranks, axis.ticks, axis.title)


def _gib_tick(value: float, decimals: int) -> str:
    return f"{value:,.{decimals}f} GiB"


def _facts(plan: EstimatedPlan) -> dict[str, str]:
    loads, cluster = plan.loads, plan.cluster
    shown = {
        "ranks": str(cluster),
        "global batch": f"{plan.work.global_batch_size:,} rows",
        "memory of the fullest rank": f"{memory_text(float(loads.device.max()))} of {memory_text(cluster.usable)} for tables",
        "slowest rank": f"{loads.time.max():.3g} ms a step",
        "balance, largest/mean": f"memory {imbalance(loads.device):.3f}, time {imbalance(loads.time):.3f}",
    }
    for kind, total in zip(KINDS, loads.memory.sum(0), strict=True):
        if total:
            shown[f"{kind}, all ranks"] = memory_text(float(total))
    if np.any(loads.host):
        shown["in the hosts' memory"] = memory_text(float(loads.host.sum()))
    return shown
