"""A plan's chart: what every rank carries, on one page that needs nothing from elsewhere."""

from html import escape
from pathlib import Path
from statistics import fmean

from dlrm_app.files import write_text
from dlrm_app.reports.chart import Axis, Chart, charts_html, linear_axis
from dlrm_app.reports.page import page
from dlrm_app.sharding.cost import KINDS
from dlrm_app.sharding.plan import TABLE_COLUMNS, EstimatedPlan, balance_line, notes, rank_rows, table_rows
from dlrm_app.table import html_table
from dlrm_app.text import memory_text

STYLES = ("first solid", "second solid", "third solid", "fourth solid")
"""Of KINDS, in their order. Solid, because stacked areas must hide what is below."""


def write_plan_page(plan: EstimatedPlan, path: Path) -> None:
    """Writes the page of ``plan``, named after its folder."""
    write_text(path, plan_page(plan, path.absolute().parent.name))


def plan_page(plan: EstimatedPlan, title: str) -> str:
    """The page: memory by kind and time of each rank, and the tables folded by shape."""
    ranks, tables = (
        html_table(*rank_rows(plan.loads, plan.cluster)),
        html_table(TABLE_COLUMNS, table_rows(plan)),
    )
    sections = [
        charts_html([memory_chart(plan), time_chart(plan)], "plan"),
        f"<h2>Ranks</h2>{''.join(f'<p>{line}.</p>' for line in (balance_line(plan.loads), *notes(plan)))}{ranks}",
        f"<h2>How tables are sharded, and why</h2>{tables}",
    ]
    return page(
        title,
        "sharding plan",
        summary=escape(
            f"{len(plan.work.tables):,} tables on {plan.cluster}, with a global batch of "
            f"{plan.work.global_batch_size:,} rows. Everything here is estimated."
        ),
        sections=sections,
    )


def memory_chart(plan: EstimatedPlan) -> Chart:
    """Each rank's memory, stacked by kind."""
    loads, num_ranks = plan.loads, plan.cluster.num_ranks
    stacked = loads.memory.cumsum(1) / 2**30
    axis = linear_axis(
        stacked[:, -1].tolist(), label=lambda value, decimals: f"{value:,.{decimals}f} GiB", from_zero=True
    )
    note = f"Tables may take {memory_text(plan.cluster.usable)} of a rank."
    chart = Chart("Memory", _rank_axis(num_ranks), axis, note=note)
    shown = [k for k in range(len(KINDS)) if loads.memory[:, k].any()]
    for k in reversed(shown):
        chart.steps(range(num_ranks + 1), stacked[:, k].tolist(), STYLES[k], KINDS[k])
    tips = [
        f"rank {rank}: {memory_text(loads.device[rank])}, "
        + ", ".join(f"{KINDS[k]} {memory_text(loads.memory[rank, k])}" for k in shown)
        for rank in range(num_ranks)
    ]
    chart.bin_tips(range(num_ranks + 1), stacked[:, -1].tolist(), tips)
    return chart


def time_chart(plan: EstimatedPlan) -> Chart:
    """Each rank's time a step for its tables: lookup, update and what it sends."""
    times: list[float] = plan.loads.time.tolist()
    mean = fmean(times)
    axis = linear_axis(times, label=lambda value, decimals: f"{value:,.{decimals}f} ms", from_zero=True)
    note = f"Dashed: the mean, {mean:.3g} ms."
    chart = Chart("Time a step, embeddings alone", _rank_axis(len(times)), axis, note=note)
    chart.steps(range(len(times) + 1), times, "first solid", "lookup, update, exchange")
    chart.guide((0, mean), (len(times), mean))
    tips = [f"rank {rank}: {value:.3g} ms" for rank, value in enumerate(times)]
    chart.bin_tips(range(len(times) + 1), times, tips)
    return chart


def _rank_axis(num_ranks: int) -> Axis:
    axis = linear_axis([0, num_ranks], "rank", ends_on_ticks=False, smallest_step=1)
    return Axis(0, num_ranks, axis.ticks, axis.title)
