"""Charts of a run: loss, AUC and throughput by step; ROC and reliability of the last predictions."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from dlrm_app.reports.chart import Axis, Chart, Point, line_chart, linear_axis, without_peaks
from dlrm_app.reports.run_record import RunRecord
from dlrm_app.runs.events import TrainEvent
from dlrm_app.text import percent, short

MAX_POINTS = 240
"""A line's points; more are averaged in groups."""
SPLIT_STYLES = {"train": "first", "val": "second", "test": "third"}


def learning_charts(record: RunRecord) -> list[Chart]:
    """The charts that the run's events allow."""
    x = linear_axis([0, max(1, record.last_step)], "step", write=short)
    group = math.ceil(len(record.train) / MAX_POINTS)
    losses = train_points(record, lambda event: event.loss)
    speeds = train_points(record, lambda event: event.samples_per_second)
    charts = [
        _metric_chart(record, "Loss, nats", "logloss", x, {"training": losses}),
        _metric_chart(record, "AUC", "auc", x, {}),
        line_chart("Training throughput, samples/s", x, {"": speeds}, _at_step, write=short),
    ]
    for chart in charts[::2]:
        if chart and group > 1:
            chart.note = "; ".join(
                filter(None, [chart.note, f"each point is the mean of {group} log events"])
            )
    return [chart for chart in charts if chart is not None]


def _metric_chart(
    record: RunRecord, title: str, key: str, x: Axis, train: Mapping[str, Sequence[Point]]
) -> Chart | None:
    """A metric of every evaluation by step, training's, and the best reachable one."""
    lines = {**train, **{split: eval_points(record, split, key) for split in ("val", "test")}}
    lines = {name: points for name, points in lines.items() if points}
    best = (record.dataset.get("best") or {}).get(key)
    heights = without_peaks(lines) + ([] if best is None else [best])
    styles = [SPLIT_STYLES.get(name, "first") for name in lines]
    chart = line_chart(title, x, lines, _at_step, styles=styles, heights=heights)
    if chart and best is not None:
        chart.guide((x.low, best), (x.high, best))
        chart.note = f"dashed: best reachable, {best:.5f}"
    return chart


def _at_step(step: float) -> str:
    return f"step {short(step)}"


def eval_points(record: RunRecord, split: str, key: str) -> list[Point]:
    """A metric of the evaluations on ``split``, by step."""
    return [(e.step, e.metrics.get(key, math.nan)) for e in record.evals if e.split == split]


def train_points(record: RunRecord, value: Callable[[TrainEvent], float]) -> list[Point]:
    """A value of the train events by step: at most MAX_POINTS points, each the mean of as many neighbours."""
    points = [(event.step, value(event)) for event in record.train]
    group = math.ceil(len(points) / MAX_POINTS) or 1
    parts = [points[start : start + group] for start in range(0, len(points), group)]
    return [(fmean(x for x, _ in part), fmean(y for _, y in part)) for part in parts]


def prediction_charts(record: RunRecord, split: str) -> list[Chart]:
    """Charts of the curves that curves.json holds for ``split``."""
    curves, style = record.curves[split], SPLIT_STYLES[split]
    charts = [roc_chart(curves["roc"], style)] if curves["roc"] else []
    return [*charts, reliability_chart(curves["reliability"], style)]


def roc_chart(roc: dict[str, Any], style: str) -> Chart:
    """True over false positives at every threshold."""
    chart = Chart("ROC: true positive rate", linear_axis([0, 1], "false positive rate"), linear_axis([0, 1]))
    chart.guide((0, 0), (1, 1))
    points = list(zip(roc["false_positive_rate"], roc["true_positive_rate"], strict=True))
    tips = [
        f"called positive from {percent(threshold)} on: {percent(y)} of the positives, {percent(x)} of the negatives"
        for (x, y), threshold in zip(points, roc["threshold"], strict=True)
    ]
    chart.line(points, style, tips)
    return chart


def reliability_chart(bins: dict[str, Any], style: str) -> Chart:
    """Observed positives over the mean prediction, in bins of about equally many rows."""
    predicted, counts = bins["mean_prediction"], bins["count"]
    observed = [k / n for k, n in zip(bins["positives"], counts, strict=True)]
    axis = linear_axis([0, *predicted, *observed], "mean prediction", write=percent)
    note = f"{len(observed)} bins of about {sum(counts) // len(counts):,} rows each"
    chart = Chart("Reliability: observed rate", axis, linear_axis([0, axis.high], write=percent), note=note)
    chart.guide((0, 0), (axis.high, axis.high))
    points = list(zip(predicted, observed, strict=True))
    tips = [
        f"predicted {percent(x)}, observed {percent(y)} of {n:,} rows"
        for (x, y), n in zip(points, counts, strict=True)
    ]
    chart.line(points, style, tips)
    return chart
