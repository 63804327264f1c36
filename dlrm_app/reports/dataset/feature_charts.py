"""What a page shows of one feature: how popular its ids are, how its values are distributed."""

import math
from itertools import pairwise

import numpy as np

from dlrm_app.check.dense_values import DenseValues
from dlrm_app.check.id_counts import Popularity
from dlrm_app.dataset.manifest import DenseColumn
from dlrm_app.reports.axis import Axis
from dlrm_app.reports.chart import SMALL, Chart
from dlrm_app.text import percent, short

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
    num_points = max(round(_NUM_POINTS * math.log(curve[-1][0] + 1) / math.log(most_ids + 1)), 2)
    k = np.geomspace(1, curve[-1][0], num_points)
    # between two points of the curve ids are equally frequent
    covered = np.interp(k, [0, *(ids for ids, _ in curve)], [0, *(share for _, share in curve)])
    points = list(zip(np.log(k).tolist(), covered.tolist(), strict=True))
    chart.band([(x, 0, y) for x, y in points], "first")
    chart.line(points, "first")
    return chart


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
    tips = [
        f"{short(raw(low, column))} to {short(raw(high, column))}: {count:,} rows, {percent(count / values.count)}"
        for (low, high), count in zip(pairwise(edges), counts, strict=True)
    ]
    chart.bin_tips(edges, counts, tips)
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
