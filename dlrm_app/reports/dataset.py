"""dataset.html: what a dataset holds, on one page that needs nothing from elsewhere."""

import logging
import math
from collections.abc import Sequence
from html import escape
from itertools import accumulate, pairwise

import numpy as np

from dlrm_app.check.dense_values import DenseValues
from dlrm_app.check.id_counts import Popularity
from dlrm_app.check.scan import Findings
from dlrm_app.check.summary import verdict
from dlrm_app.check.tables import (
    DENSE_COLUMNS,
    SPLIT_COLUMNS,
    dense_rows,
    overlap_note,
    recipe,
    sparse_columns,
    sparse_rows,
    split_rows,
)
from dlrm_app.dataset.manifest import DenseColumn, Manifest
from dlrm_app.files import write_text
from dlrm_app.reports.chart import SMALL, SPLIT_STYLES, WIDE, Axis, Chart, charts_html, linear_axis
from dlrm_app.reports.page import Tile, configuration, page, tiles
from dlrm_app.table import Cell, Column, Columns, Rows, html_table, integer
from dlrm_app.text import bytes_text, percent, percent_tick, short

logger = logging.getLogger(__name__)

_MOST_BUCKETS = 80


PAGE = "dataset.html"


def write_page(findings: Findings) -> None:
    """Writes dataset.html into the dataset; warns where that is not possible."""
    path = findings.manifest.folder / PAGE
    try:
        write_text(path, render(findings))
        logger.info(f"with plots: {path}")
    except OSError as error:
        logger.warning(f"{path} was not written: {error}")


def render(findings: Findings) -> str:
    """The page."""
    manifest = findings.manifest
    sections = [
        _overview(manifest, findings),
        _splits(manifest, findings),
        _clicks(findings) if manifest.label else "",
        _sparse(manifest, findings),
        _popularity(manifest, findings),
        _dense(manifest, findings),
        _origin(manifest),
    ]
    kind = "bad" if findings.problems else "good"
    state = f'<span class="{kind}">{verdict(findings.problems)}</span>'
    return page(
        manifest.path.resolve().name if manifest.path else manifest.dataset,
        "dataset",
        summary=f"A dataset of {escape(manifest.dataset)} clicks; checked: {state}",
        content="\n".join(f"<section>{section}</section>" for section in sections if section),
    )


def _overview(manifest: Manifest, findings: Findings) -> str:
    """What is wrong, if anything, and the dataset in a few numbers."""
    splits = manifest.splits.values()
    numbers = {
        "rows": sum(split.rows for split in splits),
        "dense features": len(manifest.dense),
        "sparse features": len(manifest.sparse),
        "rows in all tables": sum(column.num_embeddings for column in manifest.sparse),
        "rejected lines": sum(split.rejects for split in splits),
    }
    num_bytes = sum(shard.bytes for split in splits for shard in split.shards)
    shown = [Tile(name, Cell(short(number), number)) for name, number in numbers.items()]
    shown.append(Tile("size", Cell(bytes_text(num_bytes), num_bytes)))
    if manifest.best is not None:
        shown.append(Tile("best reachable AUC", Cell(f"{manifest.best['auc']:.4f}", manifest.best["auc"])))
    problems = "".join(f"<li>{escape(problem)}</li>" for problem in findings.problems)
    return (f'<ul class="problems">{problems}</ul>' if problems else "") + tiles(shown)


def _splits(manifest: Manifest, findings: Findings) -> str:
    note = overlap_note(findings)
    warning = f'<p class="bad">{escape(note)}</p>' if note else ""
    return f"<h2>Splits</h2>{warning}{html_table(SPLIT_COLUMNS, split_rows(manifest, findings))}"


def _clicks(findings: Findings) -> str:
    """The click rate along the rows of all splits, in their order, with twice its standard error."""
    total = sum(rows for groups in findings.clicks.values() for rows, _ in groups)
    buckets = {name: _merged(groups, total) for name, groups in findings.clicks.items() if groups}
    rates = [clicks / rows for groups in buckets.values() for rows, clicks in groups if rows]
    if not rates or not any(rates):
        return ""
    ticks = [(0, "first row"), (total / 2, "in the dataset's order"), (total, f"row {short(total)}")]
    height = linear_axis([min(1.15 * max(rates), 1.0)], label=percent_tick, from_zero=True)
    chart = Chart("Click rate along the rows", Axis(0, total, ticks), height, frame=WIDE)
    first = 0
    for name, groups in buckets.items():
        edges = list(accumulate((rows for rows, _ in groups), initial=first))
        rates = [clicks / max(rows, 1) for rows, clicks in groups]
        points, bands = [], []
        for (low, high), rate, (rows, _) in zip(pairwise(edges), rates, groups, strict=True):
            error = 2 * math.sqrt(rate * (1 - rate) / max(rows, 1))
            points += [(low, rate), (high, rate)]
            bands += [(edge, max(rate - error, 0), min(rate + error, height.high)) for edge in (low, high)]
        chart.band(bands, SPLIT_STYLES[name])
        chart.line(points, SPLIT_STYLES[name], key=name)
        tips = [
            f"{name}, rows {low:,} to {high:,}: {percent(rate)}"
            for (low, high), rate in zip(pairwise(edges), rates, strict=True)
        ]
        chart.bin_tips(edges, rates, tips)
        first = edges[-1]
    return (
        "<h2>Click rate</h2><p>The band is two standard errors. A jump at a split's border "
        "means that it is measured on other data than it was trained on.</p>"
        + charts_html([chart], "clicks", "wide")
    )


def _merged(groups: Sequence[tuple[int, int]], total: int) -> list[tuple[int, int]]:
    """Neighbours put together until each has its share of ``_MOST_BUCKETS``; the last takes what is left over."""
    merged: list[tuple[int, int]] = []
    rows = clicks = 0
    for group_rows, group_clicks in groups:
        rows, clicks = rows + group_rows, clicks + group_clicks
        if rows * _MOST_BUCKETS >= total:
            merged.append((rows, clicks))
            rows = clicks = 0
    if merged:
        rows, clicks = rows + merged[-1][0], clicks + merged[-1][1]
    return [*merged[:-1], (rows, clicks)]


def _sparse(manifest: Manifest, findings: Findings) -> str:
    columns = [*sparse_columns(manifest, findings), Column("encoding", is_words=True)]
    rows = [
        [*row, recipe(column.encoding, column.multi_hot)]
        for row, column in zip(sparse_rows(manifest, findings), manifest.sparse, strict=True)
    ]
    return f"<h2>Sparse features</h2>{html_table(columns, rows)}"


def _popularity(manifest: Manifest, findings: Findings) -> str:
    most = max((findings.sparse[column.name].ids_used for column in manifest.sparse), default=0)
    if not most:
        return ""
    charts = [
        popularity_chart(column.name, findings.sparse[column.name], max(most, 2))
        for column in manifest.sparse
    ]
    return (
        "<h2>How popular the ids are</h2><p>The share of a feature's lookups that go to its k most frequent ids, "
        "k on a logarithmic axis, the same for all features; missing values left out. A curve that starts high "
        f"means that a small cache serves most lookups.</p>{charts_html(charts, 'popularity', 'small')}"
    )


def _dense(manifest: Manifest, findings: Findings) -> str:
    if not manifest.dense:
        return ""
    charts = [dense_chart(column, findings.dense[column.name]) for column in manifest.dense]
    return (
        f"<h2>Dense features</h2>{html_table(DENSE_COLUMNS, dense_rows(manifest, findings))}"
        "<h2>How dense values are distributed</h2>"
        "<p>Values after the transform; the numbers below are the raw values.</p>"
        f"{charts_html(charts, 'dense', 'small')}"
    )


def _origin(manifest: Manifest) -> str:
    columns: Columns = ["file", Column("split", is_words=True), "rows", "size", "checksum of the text"]
    rows: Rows = [
        [source.path, source.split, integer(source.rows), bytes_text(source.bytes), source.checksum]
        for source in manifest.sources
    ]
    sources = html_table(columns, rows) if rows else ""
    return f"<h2>Where it came from</h2>{sources}{configuration(manifest.config) if manifest.config else ''}"


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
