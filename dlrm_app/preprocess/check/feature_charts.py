"""What a page shows of one feature: how popular its ids are, how its values are distributed."""

import math
from collections.abc import Sequence
from html import escape

from dlrm_app.data.manifest import DenseColumn
from dlrm_app.display.numbers import percent, short
from dlrm_app.preprocess.check import charts
from dlrm_app.preprocess.check.dense_values import DenseValues
from dlrm_app.preprocess.check.id_counts import Popularity

_NUM_POINTS = 80
_NUM_BARS = 40
_COVERED = 0.9


def popularity_card(name: str, found: Popularity, most_ids: int) -> str:
    """The share of lookups that go to the k most frequent ids, over k from 1 to ``most_ids``, logarithmic."""
    curve = found.coverage()
    if not curve:
        return _card(name, "no ids", "")
    ids = next(ids for ids, share in curve if share >= _COVERED)
    points = _on_log_axis(curve, most_ids)
    marks = charts.level(0) + charts.level(1) + charts.level(_COVERED, "guide")
    marks += charts.area(points) + charts.line(points)
    words = f"{percent(_COVERED)}: {short(ids)} of {short(found.ids_used)} ids"
    chart = charts.svg(marks, f"{name}, share of lookups: {words}")
    return _card(name, words, chart + charts.row(["1", f"{short(most_ids)} ids"]))


def _on_log_axis(curve: Sequence[tuple[int, float]], most_ids: int) -> list[charts.Point]:
    """(log k as a share of the axis, share of lookups), at evenly spaced k; in between ids are equally frequent."""
    last = curve[-1][0]
    points = []
    at, before = 0, (0, 0.0)
    steps = max(round(_NUM_POINTS * math.log(last + 1) / math.log(most_ids + 1)), 2)
    for step in range(steps):
        k = last ** (step / (steps - 1))
        while curve[at][0] < k - 1e-9:
            before = curve[at]
            at += 1
        share = (k - before[0]) / (curve[at][0] - before[0])
        height = before[1] + share * (curve[at][1] - before[1])
        points.append((math.log(k) / math.log(max(most_ids, 2)), height))
    return points


def dense_card(column: DenseColumn, found: DenseValues) -> str:
    """A histogram of the values as a model sees them; below are the raw values at its ends."""
    if not found.count:
        return _card(column.name, "no values", "")
    histogram = found.histogram(_NUM_BARS)
    most = max(int(histogram.counts.max()), 1)
    edges = [float(edge) for edge in histogram.edges]
    texts = [
        f"{short(raw(low, column))} to {short(raw(high, column))}: {count:,} rows, {percent(count / found.count)}"
        for low, high, count in zip(edges, edges[1:], histogram.counts.tolist(), strict=False)
    ]
    heights = [count / most for count in histogram.counts.tolist()]
    chart = charts.svg(charts.level(0) + charts.bars(heights, texts), f"histogram of {column.name}")
    middle = (edges[0] + edges[-1]) / 2
    ends = [short(raw(value, column)) for value in (edges[0], middle, edges[-1])]
    words = f"{percent(column.missing_rate)} missing; peak {percent(most / found.count)}"
    return _card(column.name, words, chart + charts.row(ends))


def raw(value: float, column: DenseColumn) -> float:
    """The raw value behind a transformed one."""
    transform = column.transform
    if transform["kind"] == "log1p":
        return math.expm1(value)
    if transform["kind"] == "log3":
        return math.exp(value) - 3
    if transform["kind"] == "standardize":
        return float(value * transform["deviation"] + transform["mean"])
    return value


def _card(name: str, words: str, chart: str) -> str:
    title = escape(name)
    return f'<div class="card train"><b title="{title}">{title}</b><span>{words}</span>{chart}</div>'
