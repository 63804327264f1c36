"""Charts of a run: loss, AUC and throughput by step; ROC, reliability and scores of the last predictions."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from dlrm_app.reports.chart import SPLIT_STYLES, Axis, Chart, Point, linear_axis
from dlrm_app.reports.run_record import RunRecord
from dlrm_app.runs.events import TrainEvent
from dlrm_app.text import fixed, percent, percent_tick, short

MAX_POINTS = 240
"""A line's points; more are averaged in groups."""


def learning_charts(record: RunRecord) -> list[Chart]:
    """The charts that the run's events allow."""
    losses = _train_points(record, lambda event: event.loss)
    charts = [
        metric_chart(record, "Loss, nats", "log loss", "logloss", losses),
        metric_chart(record, "AUC", "AUC", "auc"),
        throughput_chart(record),
    ]
    return [chart for chart in charts if chart is not None]


def metric_chart(
    record: RunRecord, title: str, name: str, key: str, train: Sequence[Point] = ()
) -> Chart | None:
    """A metric of every evaluation by step, the best reachable one, and training's."""
    evals = {
        split: [(e.step, e.metrics.get(key, math.nan)) for e in record.evals if e.split == split]
        for split in ("val", "test")
    }
    values = [y for points in evals.values() for _, y in points]
    if not train and not any(map(math.isfinite, values)):
        return None
    best = (record.dataset.get("best") or {}).get(key)
    heights = values + without_peaks([y for _, y in train]) + ([] if best is None else [best])
    notes = [f"dashed: best reachable, {best:.5f}"] if best is not None else []
    notes += [note] if train and (note := _note_on_groups(record)) else []
    across = step_axis(record)
    chart = Chart(title, across, linear_axis(heights), note="; ".join(notes))
    if best is not None:
        chart.guide((across.low, best), (across.high, best))
    if train:
        chart.line(train, "first", [f"step {short(x)}: training loss {y:.5f}" for x, y in train], "training")
    for split, points in evals.items():
        if points:
            tips = [f"step {short(x)}: {name} on {split} {fixed(y, 5)}" for x, y in points]
            chart.line(points, SPLIT_STYLES[split], tips, split)
    return chart


def throughput_chart(record: RunRecord) -> Chart | None:
    """Training samples a second by step."""
    points = _train_points(record, lambda event: event.samples_per_second)
    if not points:
        return None
    y = linear_axis([y for _, y in points], label=lambda value, _: short(value), from_zero=True)
    chart = Chart("Training throughput, samples/s", step_axis(record), y, note=_note_on_groups(record))
    chart.line(points, "first", [f"step {short(x)}: {short(y)} samples/s" for x, y in points])
    return chart


def step_axis(record: RunRecord) -> Axis:
    """Steps from 0 to the last."""
    steps = [0, max(1, record.last_step)]
    return linear_axis(steps, "step", label=lambda value, _: short(value), ends_on_ticks=False)


def thin(points: Sequence[Point]) -> list[Point]:
    """At most MAX_POINTS points, each the mean of as many neighbours; what is not finite stays so."""
    group = math.ceil(len(points) / MAX_POINTS) or 1
    parts = [points[start : start + group] for start in range(0, len(points), group)]
    return [(fmean(x for x, _ in part), fmean(y for _, y in part)) for part in parts]


def _train_points(record: RunRecord, value: Callable[[TrainEvent], float]) -> list[Point]:
    return thin([(event.step, value(event)) for event in record.train])


def without_peaks(losses: Sequence[float]) -> list[float]:
    """``losses`` less the highest hundredth where it would flatten all others: the first steps' mostly."""
    finite = sorted(loss for loss in losses if math.isfinite(loss))
    kept = finite[: max(1, math.ceil(0.98 * len(finite)))]
    if len(finite) < 20 or finite[-1] - finite[0] < 2 * (kept[-1] - kept[0]):
        return finite
    return kept


def _note_on_groups(record: RunRecord) -> str:
    group = math.ceil(len(record.train) / MAX_POINTS)
    return f"each point is the mean of {group} log events" if group > 1 else ""


def prediction_charts(record: RunRecord, split: str) -> list[Chart]:
    """Charts of the curves that curves.json holds for ``split``."""
    curves, style = record.curves[split], SPLIT_STYLES[split]
    charts = [roc_chart(curves["roc"], style)] if curves["roc"] else []
    return [*charts, reliability_chart(curves["reliability"], style), histogram_chart(curves["histogram"])]


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
    axis = linear_axis([0, *predicted, *observed], "mean prediction", label=percent_tick)
    note = f"{len(observed)} bins of about {sum(counts) // len(counts):,} rows each"
    upright = linear_axis([0, axis.high], label=percent_tick)
    chart = Chart("Reliability: observed rate", axis, upright, note=note)
    chart.guide((0, 0), (axis.high, axis.high))
    points = list(zip(predicted, observed, strict=True))
    tips = [
        f"predicted {percent(x)}, observed {percent(y)} of {n:,} rows"
        for (x, y), n in zip(points, counts, strict=True)
    ]
    chart.line(points, style, tips)
    return chart


def histogram_chart(histogram: dict[str, Any]) -> Chart:
    """Distribution of the predictions of either class."""
    edges: list[float] = histogram["edges"]
    classes = {"negatives": "first", "positives": "second"}
    totals = {name: sum(histogram[name]) for name in classes}
    shares = {name: [n / max(1, totals[name]) for n in histogram[name]] for name in classes}
    upright = linear_axis([0, *shares["negatives"], *shares["positives"]], label=percent_tick)

    def probability(logit: float, _: int = 0) -> str:
        return percent(1 / (1 + math.exp(-logit)))

    title = "prediction (spaced by log-odds)"
    axis = linear_axis([edges[0], edges[-1]], title, label=probability, ends_on_ticks=False)
    chart = Chart("Predictions, share of each class", axis, upright)
    ends = list(map(probability, edges))
    for name, style in classes.items():
        tips = [
            f"{low} to {high}: {number:,} {name}"
            for (low, high), number in zip(pairwise(ends), histogram[name], strict=True)
        ]
        chart.steps(edges, shares[name], style, tips, f"{name} ({totals[name]:,})")
    return chart
