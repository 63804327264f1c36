"""What a page shows of one feature: how popular its ids are, how its values are distributed."""

import math
from collections.abc import Sequence
from itertools import pairwise

from dlrm_app.data.manifest import DenseColumn
from dlrm_app.display.axis import Axis
from dlrm_app.display.chart import SMALL, Chart, Point
from dlrm_app.display.numbers import percent, short
from dlrm_app.preprocess.check.dense_values import DenseValues
from dlrm_app.preprocess.check.id_counts import Popularity

_NUM_POINTS = 80
_NUM_BARS = 40
_COVERED = 0.9


def popularity_chart(name: str, popularity: Popularity, most_ids: int) -> Chart:
    """The share of lookups that go to the k most frequent ids, over k from 1 to ``most_ids``, logarithmic."""
    curve = popularity.coverage()
    if not curve:
        return _empty(name, "no ids")
    ids = next(ids for ids, share in curve if share >= _COVERED)
    words = f"{percent(_COVERED)}: {short(ids)} of {short(popularity.ids_used)} ids"
    end = math.log(most_ids)
    across = Axis(0, end, [(0, "1"), (end, f"{short(most_ids)} ids")])
    chart = Chart(name, across, Axis(0, 1, [(1, "")]), note=words, frame=SMALL)
    chart.guide((0, _COVERED), (end, _COVERED))
    points = _on_log_axis(curve, most_ids)
    chart.band([(x, 0, y) for x, y in points], "first")
    chart.line(points, "first")
    return chart


def _on_log_axis(curve: Sequence[tuple[int, float]], most_ids: int) -> list[Point]:
    """(log k, share of lookups), at evenly spaced log k; in between ids are equally frequent."""
    last = curve[-1][0]
    points = []
    index, before = 0, (0, 0.0)
    steps = max(round(_NUM_POINTS * math.log(last + 1) / math.log(most_ids + 1)), 2)
    for step in range(steps):
        k = last ** (step / (steps - 1))
        while curve[index][0] < k - 1e-9:
            before = curve[index]
            index += 1
        share = (k - before[0]) / (curve[index][0] - before[0])
        points.append((math.log(k), before[1] + share * (curve[index][1] - before[1])))
    return points


def dense_chart(column: DenseColumn, values: DenseValues) -> Chart:
    """A histogram of the values as a model sees them; below are the raw values at its ends."""
    if not values.count:
        return _empty(column.name, "no values")
    histogram = values.histogram(_NUM_BARS)
    counts: list[int] = histogram.counts.tolist()
    edges: list[float] = histogram.edges.tolist()
    most = max(*counts, 1)
    ends = (edges[0], (edges[0] + edges[-1]) / 2, edges[-1])
    across = Axis(edges[0], edges[-1], [(value, short(raw(value, column))) for value in ends])
    note = f"{percent(column.missing_rate)} missing; peak {percent(most / values.count)}"
    chart = Chart(column.name, across, Axis(0, most, []), note=note, frame=SMALL)
    chart.bars(edges, counts, "first")
    bars = [(low, high, count) for (low, high), count in zip(pairwise(edges), counts, strict=True) if count]
    tips = [
        f"{short(raw(low, column))} to {short(raw(high, column))}: {count:,} rows, {percent(count / values.count)}"
        for low, high, count in bars
    ]
    chart.tips([((low + high) / 2, count) for low, high, count in bars], tips, "guide")
    return chart


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


def _empty(name: str, why: str) -> Chart:
    return Chart(name, Axis(0, 1, []), Axis(0, 1, []), note=why, frame=SMALL)
