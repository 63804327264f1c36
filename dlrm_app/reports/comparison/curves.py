"""Curves of several runs over each other, by the rows trained on, so that runs of other batch sizes compare."""

import math
from collections.abc import Callable, Sequence

from dlrm_app.reports.axis import linear_axis
from dlrm_app.reports.chart import Chart, Point
from dlrm_app.reports.comparison.runs import ComparedRun
from dlrm_app.reports.run.learning_charts import thin, without_peaks
from dlrm_app.text import count, fixed, short

STYLES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
"""Colours; no more runs than these are drawn."""

Curve = Callable[[ComparedRun], list[Point]]


def comparison_charts(runs: Sequence[ComparedRun], split: str) -> list[Chart]:
    """AUC and log loss of ``split`` by rows trained on, training loss and throughput; what no run has is left out."""
    charts = [
        _chart(runs, f"AUC on {split}", lambda run: _evals(run, split, "auc"), 5),
        _chart(runs, f"Log loss on {split}", lambda run: _evals(run, split, "logloss"), 5),
        _chart(runs, "Training loss", _losses, 5),
        _chart(runs, "Training throughput, samples/s", _speeds, None),
    ]
    return [chart for chart in charts if chart is not None]


def _chart(runs: Sequence[ComparedRun], title: str, curve: Curve, decimals: int | None) -> Chart | None:
    """``decimals`` of the values that are shown; None: three digits that count, on an axis from 0."""
    lines = {run.name: curve(run) for run in runs[: len(STYLES)]}
    heights = [y for points in lines.values() for y in without_peaks([y for _, y in points])]
    if not any(map(math.isfinite, heights)):
        return None
    most = max(x for points in lines.values() for x, _ in points)
    x_axis = linear_axis(
        [0, most], "rows trained on", label=lambda value, _: short(value), ends_on_ticks=False
    )
    if decimals is None:
        y_axis = linear_axis(heights, label=lambda value, _: short(value), from_zero=True)
    else:
        y_axis = linear_axis(heights)
    left_out = len(runs) - len(lines)
    note = f"{count(left_out, 'more run')} {'is' if left_out == 1 else 'are'} not drawn" if left_out else ""
    chart = Chart(title, x_axis, y_axis, note=note)
    for (name, points), style in zip(lines.items(), STYLES, strict=False):
        values = [short(y) if decimals is None else fixed(y, decimals) for _, y in points]
        tips = [f"{name}, {short(x)} rows: {value}" for (x, _), value in zip(points, values, strict=True)]
        chart.line(points, style, tips, name)
    return chart


def _evals(run: ComparedRun, split: str, key: str) -> list[Point]:
    events = [event for event in run.record.evals if event.split == split]
    return [(event.step * run.batch_size, event.metrics.get(key, math.nan)) for event in events]


def _losses(run: ComparedRun) -> list[Point]:
    return thin([(event.step * run.batch_size, event.loss) for event in run.record.train])


def _speeds(run: ComparedRun) -> list[Point]:
    return thin([(event.step * run.batch_size, event.samples_per_second) for event in run.record.train])
