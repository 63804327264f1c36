"""Charts over the course of a run: loss, AUC, learning rates, throughput."""

import math
from collections.abc import Sequence
from statistics import fmean

from dlrm_app.display.axis import Axis, linear_axis
from dlrm_app.display.chart import SPLIT_STYLES, Chart, Figure, Key, Point
from dlrm_app.display.numbers import fixed, percent_tick, short
from dlrm_app.training.report.run_record import RunRecord

MAX_POINTS = 240
"""A line's points; more are averaged in groups."""
EVALUATED = ("val", "test")


def learning_figures(record: RunRecord) -> list[Figure]:
    """The figures that the run's events allow."""
    figures = [loss_figure(record), auc_figure(record), throughput_figure(record), rate_figure(record)]
    return [figure for figure in figures if figure is not None]


def loss_figure(record: RunRecord) -> Figure | None:
    """Training loss by step, and the log loss of every evaluation."""
    train = thin([(event["step"], event["loss"]) for event in record.of_kind("train")])
    evals = {split: _points(record, split, "logloss") for split in EVALUATED}
    if not train and not any(evals.values()):
        return None
    best = (record.dataset.get("best") or {}).get("logloss")
    heights = [y for points in evals.values() for _, y in points] + ([] if best is None else [best])
    x, y = step_axis(record), linear_axis(heights + _without_peaks([y for _, y in train]))
    chart = Chart(x, y, f"Loss over {record.last_step} steps")
    if best is not None:
        chart.level(best, "best reachable")
    chart.line(train, "first", [f"step {short(x)}: training loss {y:.5f}" for x, y in train])
    keys = [Key("training", "first")] if train else []
    keys += _add_splits(chart, evals, "log loss")
    return Figure("Loss, nats", chart, keys, _note_on_groups(record, train))


def auc_figure(record: RunRecord) -> Figure | None:
    """The AUC of every evaluation."""
    evals = {split: _points(record, split, "auc") for split in EVALUATED}
    values = [y for points in evals.values() for _, y in points]
    if not any(math.isfinite(value) for value in values):
        return None
    best = (record.dataset.get("best") or {}).get("auc")
    axis = linear_axis(values + ([] if best is None else [best]), bounds=(0, 1))
    chart = Chart(step_axis(record), axis, "Area under the ROC curve by step")
    if best is not None:
        chart.level(best, "best reachable")
    return Figure("AUC", chart, _add_splits(chart, evals, "AUC"))


def throughput_figure(record: RunRecord) -> Figure | None:
    """Samples a second over the time since the first event."""
    train = record.of_kind("train")
    if not train:
        return None
    size, unit = _time_unit(train[-1].get("time", 0) - train[0].get("time", 0))
    begin = train[0].get("time", 0)
    points = thin([((e.get("time", begin) - begin) / size, e["samples_per_second"]) for e in train])
    x = linear_axis(
        [x for x, _ in points], f"{unit} since the first steps", ends_on_ticks=False, from_zero=True
    )
    y = linear_axis([y for _, y in points], label=lambda value, _: short(value), from_zero=True)
    chart = Chart(x, y, "Training samples per second over time")
    chart.line(points, "first", [f"{x:.3g} {unit}: {short(y)} samples/s" for x, y in points])
    return Figure("Training throughput, samples/s", chart, [], _note_on_groups(record, points))


def rate_figure(record: RunRecord) -> Figure | None:
    """Learning rates by step, where they change: each as a share of its highest value, which the key tells."""
    train = [event for event in record.of_kind("train") if isinstance(event.get("lr"), dict)]
    parts = list(train[0]["lr"]) if train else []
    series = {part: [(event["step"], event["lr"].get(part, math.nan)) for event in train] for part in parts}
    if all(len({y for _, y in points}) <= 1 for points in series.values()):
        return None
    axis = linear_axis([0, 1], label=percent_tick)
    chart = Chart(step_axis(record), axis, "Learning rates by step")
    keys = []
    for (part, points), style in zip(series.items(), ("first", "second", "third"), strict=False):
        top = max(y for _, y in points) or 1.0
        points = every_nth(points)
        tips = [f"step {short(x)}: {part} {y:.4g}" for x, y in points]
        chart.line([(x, y / top) for x, y in points], style, tips)
        keys.append(Key(f"{part}, highest {top:.4g}", style))
    return Figure("Learning rates, share of the highest", chart, keys)


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


def every_nth(points: Sequence[Point]) -> list[Point]:
    """At most about MAX_POINTS of ``points``, the last one among them."""
    step = math.ceil(len(points) / MAX_POINTS) or 1
    return list(points[:-1][::step]) + list(points[-1:])


def _points(record: RunRecord, split: str, key: str) -> list[Point]:
    return [(e["step"], e.get(key, math.nan)) for e in record.of_kind("eval") if e["split"] == split]


def _add_splits(chart: Chart, evals: dict[str, list[Point]], what: str) -> list[Key]:
    keys = []
    for split, points in evals.items():
        if points:
            tips = [f"step {short(x)}: {what} on {split} {fixed(y, 5)}" for x, y in points]
            chart.line(points, SPLIT_STYLES[split], tips)
            keys.append(Key(split, SPLIT_STYLES[split]))
    return keys


def _without_peaks(losses: Sequence[float]) -> list[float]:
    """``losses`` less the highest hundredth where it would flatten all others: the first steps' mostly."""
    finite = sorted(loss for loss in losses if math.isfinite(loss))
    kept = finite[: max(1, math.ceil(0.98 * len(finite)))]
    if len(finite) < 20 or finite[-1] - finite[0] < 2 * (kept[-1] - kept[0]):
        return finite
    return kept


def _note_on_groups(record: RunRecord, points: Sequence[Point]) -> str:
    num_events = len(record.of_kind("train"))
    group = math.ceil(num_events / MAX_POINTS)
    return f"each point is the mean of {group} log events" if group > 1 and points else ""


def _time_unit(seconds: float) -> tuple[float, str]:
    if seconds < 180:
        return 1.0, "seconds"
    return (60.0, "minutes") if seconds < 3 * 3600 else (3600.0, "hours")
