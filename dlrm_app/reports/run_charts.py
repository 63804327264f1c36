"""Charts of a run: loss, AUC, throughput and learning rates by step; ROC, reliability and scores of the last predictions."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from dlrm_app.reports.chart import SPLIT_STYLES, Axis, Chart, Point, linear_axis, logit_axis
from dlrm_app.reports.run_record import RunRecord
from dlrm_app.runs.events import TrainEvent
from dlrm_app.text import fixed, percent, percent_tick, short

MAX_POINTS = 240
"""A line's points; more are averaged in groups."""


def learning_charts(record: RunRecord) -> list[Chart]:
    """The charts that the run's events allow."""
    charts = [
        metric_chart(
            record, "Loss, nats", "log loss", "logloss", _train_points(record, lambda event: event.loss)
        ),
        metric_chart(record, "AUC", "AUC", "auc"),
        throughput_chart(record),
        rates_chart(record),
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
    axis = linear_axis(heights, bounds=(0, 1) if key == "auc" else (-math.inf, math.inf))
    across = step_axis(record)
    notes = [
        "" if best is None else f"dashed: best reachable, {best:.5f}",
        _note_on_groups(record) if train else "",
    ]
    chart = Chart(title, across, axis, note="; ".join(filter(None, notes)))
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


def rates_chart(record: RunRecord) -> Chart | None:
    """Learning rates by step, where they change: each as a share of its highest value, which the key tells."""
    parts = list(record.train[0].lr) if record.train else []
    series = {part: thin([(e.step, e.lr.get(part, math.nan)) for e in record.train]) for part in parts}
    if all(len({y for _, y in points}) <= 1 for points in series.values()):
        return None
    y_axis = linear_axis([0, 1], label=percent_tick)
    chart = Chart("Learning rates, share of the highest", step_axis(record), y_axis)
    for (part, points), style in zip(series.items(), ("first", "second", "third"), strict=False):
        top = max(y for _, y in points) or 1.0
        tips = [f"step {short(x)}: {part} {y:.4g}" for x, y in points]
        chart.line([(x, y / top) for x, y in points], style, tips, f"{part}, highest {top:.4g}")
    return chart


def step_axis(record: RunRecord) -> Axis:
    """Steps from 0 to the last."""
    return linear_axis(
        [0, max(1, record.last_step)],
        "step",
        label=lambda value, _: short(value),
        ends_on_ticks=False,
        smallest_step=1,
    )


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


Z95 = 1.959964
"""The standard normal's 97.5% quantile."""


def prediction_charts(record: RunRecord, split: str) -> list[Chart]:
    """Charts of the curves that curves.json holds for ``split``."""
    curves = record.curves[split]
    charts = [roc_chart(curves["roc"], record, split)] if curves["roc"] else []
    charts.append(reliability_chart(curves["reliability"], SPLIT_STYLES[split]))
    return [*charts, histogram_chart(curves["histogram"])]


def roc_chart(roc: dict[str, Any], record: RunRecord, split: str) -> Chart:
    """True over false positives at every threshold."""
    axis = linear_axis([0, 1], "false positive rate")
    event = record.last_eval(split)
    auc = fixed(event.metrics["auc"] if event else None, 5)
    chart = Chart("ROC: true positive rate", axis, linear_axis([0, 1]))
    chart.guide((0, 0), (1, 1))
    points = list(zip(roc["false_positive_rate"], roc["true_positive_rate"], strict=True))
    tips = [
        f"called positive from {percent(threshold)} on: {percent(y)} of the positives, {percent(x)} of the negatives"
        for (x, y), threshold in zip(points, roc["threshold"], strict=True)
    ]
    chart.line(points, SPLIT_STYLES[split], tips, f"{split}, AUC {auc}")
    return chart


def reliability_chart(bins: dict[str, Any], style: str) -> Chart:
    """Observed positives over the mean prediction, in bins of about equally many rows."""
    predicted: Sequence[float] = bins["mean_prediction"]
    observed = [k / n for k, n in zip(bins["positives"], bins["count"], strict=True)]
    ranges = [wilson_interval(k, n) for k, n in zip(bins["positives"], bins["count"], strict=True)]
    high = max(*predicted, *observed)
    axis = linear_axis([0, high], "mean prediction", label=percent_tick)
    upright = linear_axis([0, axis.high], label=percent_tick)
    note = (
        f"{len(observed)} bins of about {sum(bins['count']) // len(observed):,} rows each, with 95% intervals"
    )
    chart = Chart("Reliability: observed rate", axis, upright, note=note)
    chart.guide((0, 0), (axis.high, axis.high))
    for x, (low, top) in zip(predicted, ranges, strict=True):
        chart.error_bar(x, low, min(top, upright.high), style)
    points = list(zip(predicted, observed, strict=True))
    tips = [
        f"predicted {percent(x)}, observed {percent(y)} of {n:,} rows"
        for (x, y), n in zip(points, bins["count"], strict=True)
    ]
    chart.line(points, f"{style} thin", tips)
    return chart


def wilson_interval(positives: int, count: int) -> tuple[float, float]:
    """The 95% score interval of a rate (Wilson 1927, "Probable inference")."""
    rate, shrink = positives / count, 1 + Z95**2 / count
    middle = (rate + Z95**2 / (2 * count)) / shrink
    half = Z95 * math.sqrt(rate * (1 - rate) / count + Z95**2 / (4 * count**2)) / shrink
    return max(0.0, middle - half), min(1.0, middle + half)


def histogram_chart(histogram: dict[str, Any]) -> Chart:
    """Distribution of the predictions of either class."""
    edges: list[float] = histogram["edges"]
    classes = {"negatives": "first", "positives": "second"}
    totals = {name: sum(histogram[name]) for name in classes}
    shares = {name: [n / max(1, totals[name]) for n in histogram[name]] for name in classes}
    upright = linear_axis([0, *shares["negatives"], *shares["positives"]], label=percent_tick)
    axis = logit_axis(edges[0], edges[-1], "prediction (spaced by log-odds)")
    chart = Chart("Predictions, share of each class", axis, upright)
    for name, style in classes.items():
        chart.steps(edges, shares[name], style, f"{name} ({totals[name]:,})")
    tips = [
        f"{percent(_sigmoid(low))} to {percent(_sigmoid(high))}: {negatives:,} negatives, {positives:,} positives"
        for (low, high), negatives, positives in zip(
            pairwise(edges), histogram["negatives"], histogram["positives"], strict=True
        )
    ]
    chart.bin_tips(edges, [max(pair) for pair in zip(*shares.values(), strict=True)], tips)
    return chart


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))
