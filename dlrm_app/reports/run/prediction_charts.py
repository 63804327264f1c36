"""Charts of one split's last predictions: ROC curve, reliability diagram, score histogram."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from dlrm_app.reports.axis import linear_axis, logit_axis
from dlrm_app.reports.chart import SPLIT_STYLES, Chart
from dlrm_app.reports.run.run_record import RunRecord
from dlrm_app.text import fixed, percent, percent_tick

Z95 = 1.959964
"""The standard normal's 97.5% quantile."""


def prediction_charts(record: RunRecord, split: str) -> list[Chart]:
    """What curves.json has for ``split``."""
    curves = record.curves.get(split, {})
    charts = []
    if curves.get("roc"):
        charts.append(roc_chart(curves["roc"], record, split))
    if curves.get("reliability"):
        charts.append(reliability_chart(curves["reliability"], SPLIT_STYLES[split]))
    if curves.get("histogram"):
        charts.append(histogram_chart(curves["histogram"]))
    return charts


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
    """How the predictions of either class are spread."""
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
