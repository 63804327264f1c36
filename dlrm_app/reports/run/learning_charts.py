"""Charts over the course of a run: loss, AUC, throughput, learning rates."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from dlrm_app.reports.axis import Axis, linear_axis
from dlrm_app.reports.chart import SPLIT_STYLES, Chart, Point
from dlrm_app.reports.run.run_record import RunRecord
from dlrm_app.runs.events import TrainEvent
from dlrm_app.text import fixed, percent_tick, short

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
    chart = Chart(title, step_axis(record), axis, note=_note_on_groups(record) if train else "")
    if best is not None:
        chart.level(best, "best reachable")
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
