"""dataset.html: the contents of a dataset on one page that needs nothing from elsewhere."""

import logging
import math
from collections.abc import Sequence
from html import escape
from itertools import accumulate, pairwise

import numpy as np

from dlrm_app.check.check_dataset import Findings
from dlrm_app.check.distributions import DenseValues, Popularity
from dlrm_app.check.tables import dense_table, overlap_note, recipe, sparse_table, split_table
from dlrm_app.dataset.lineage import growth_table
from dlrm_app.dataset.manifest import DenseColumn, Manifest
from dlrm_app.files import write_text
from dlrm_app.reports.chart import SMALL, SPLIT_STYLES, WIDE, Axis, Chart, charts_html, linear_axis
from dlrm_app.reports.page import Tile, configuration, page, tiles
from dlrm_app.table import Cell, Column, Columns, Rows, html_table, integer
from dlrm_app.text import bytes_text, percent, percent_tick, short

PAGE = "dataset.html"
_MOST_BUCKETS = 80
_NUM_POINTS = 80
_NUM_BARS = 40
_COVERED = 0.9
_SHOWN_DAYS = 7
"""Days before that are named."""
logger = logging.getLogger(__name__)


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
        _overview(findings),
        _splits(findings),
        _clicks(findings) if manifest.label else "",
        _sparse(findings),
        _growth(manifest),
        _dense(findings),
        _origin(manifest),
    ]
    kind = "bad" if findings.problems else "good"
    state = f'<span class="{kind}">{findings.verdict}</span>'
    return page(
        manifest.path.resolve().name if manifest.path else manifest.dataset,
        "dataset",
        summary=f"A dataset of {escape(manifest.dataset)} clicks; checked: {state}",
        sections=sections,
    )


def _overview(findings: Findings) -> str:
    """The problems, if any, and the dataset in a few numbers."""
    manifest = findings.manifest
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


def _splits(findings: Findings) -> str:
    note = overlap_note(findings)
    warning = f'<p class="bad">{escape(note)}</p>' if note else ""
    return f"<h2>Splits</h2>{warning}{html_table(*split_table(findings))}"


def _clicks(findings: Findings) -> str:
    """The click rate along the rows of all splits, in their order."""
    total = sum(findings.totals(name)[0] for name in findings.clicks)
    rates = {name: _click_rates(groups, total) for name, groups in findings.clicks.items() if groups}
    most = max((rate for _, found in rates.values() for rate in found), default=0.0)
    if not most:
        return ""
    ticks = [(0.0, "first row"), (total / 2, "in the dataset's order"), (float(total), f"row {short(total)}")]
    upright = linear_axis([min(1.15 * most, 1.0)], label=percent_tick, from_zero=True)
    chart = Chart("Click rate along the rows", Axis(0, total, ticks), upright, frame=WIDE)
    first = 0.0
    for name, (rows, found) in rates.items():
        edges = list(accumulate(rows, initial=first))
        tips = [
            f"{name}, rows {low:,.0f} to {high:,.0f}: {percent(rate)}"
            for (low, high), rate in zip(pairwise(edges), found, strict=True)
        ]
        chart.steps(edges, found, SPLIT_STYLES[name], tips, name)
        first = edges[-1]
    return (
        "<h2>Click rate</h2><p>A jump at a split's border means that it is measured on other data "
        "than it was trained on.</p>" + charts_html([chart], "clicks", "wide")
    )


def _click_rates(groups: Sequence[tuple[int, int]], total: int) -> tuple[list[float], list[float]]:
    """(rows, click rate) of neighbours put together; a split has its share of ``_MOST_BUCKETS`` of them."""
    rows, clicks = np.array(groups, np.float64).T
    bucket = ((np.cumsum(rows) - rows) * _MOST_BUCKETS // total).astype(np.int64)
    rows, clicks = np.bincount(bucket, rows), np.bincount(bucket, clicks)
    return rows[rows > 0].tolist(), (clicks[rows > 0] / rows[rows > 0]).tolist()


def _growth(manifest: Manifest) -> str:
    """The day of vocabularies that grow, and what it did to them."""
    lineage = manifest.lineage
    if not lineage or not lineage.growth:
        return ""
    days = ", ".join(each.day for each in lineage.ancestors[-_SHOWN_DAYS:])
    before = f"<p>Days before: {escape(days)}</p>" if days else ""
    return f"<h2>Vocabularies on day {escape(lineage.day)}</h2>{before}{html_table(*growth_table(lineage))}"


def _sparse(findings: Findings) -> str:
    columns, rows = sparse_table(findings)
    sparse = findings.manifest.sparse
    encodings = [recipe(column.encoding, column.multi_hot) for column in sparse]
    table = html_table(
        [*columns, Column("encoding", is_words=True)],
        [[*row, encoding] for row, encoding in zip(rows, encodings, strict=True)],
    )
    found = {column.name: findings.sparse.get(column.name) for column in sparse}
    shown = {name: popularity for name, popularity in found.items() if popularity and popularity.ids_used}
    if not shown:
        return f"<h2>Sparse features</h2>{table}"
    most = max(2, *(popularity.ids_used for popularity in shown.values()))
    charts = [popularity_chart(name, popularity, most) for name, popularity in shown.items()]
    return (
        f"<h2>Sparse features</h2>{table}"
        "<h2>Popularity of ids</h2><p>The share of a feature's lookups that go to its k most frequent ids, "
        "k on a logarithmic axis, the same for all features; missing values left out. A curve that starts high "
        f"means that a small cache serves most lookups.</p>{charts_html(charts, 'popularity', 'small')}"
    )


def _dense(findings: Findings) -> str:
    if not findings.manifest.dense:
        return ""
    found = [(column, findings.dense[column.name]) for column in findings.manifest.dense]
    charts = [dense_chart(column, values) for column, values in found if values.count]
    return (
        f"<h2>Dense features</h2>{html_table(*dense_table(findings))}"
        "<h2>Distributions of dense values</h2>"
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
    return f"<h2>Origin</h2>{sources}{configuration(manifest.config) if manifest.config else ''}"


def popularity_chart(name: str, popularity: Popularity, most_ids: int) -> Chart:
    """The share of lookups that go to the k most frequent ids, over k from 1 to ``most_ids``, logarithmic."""
    lookups = popularity.curve[-1][1]
    ids = next(ids for ids, covered in popularity.curve if covered >= _COVERED * lookups)
    words = f"{percent(_COVERED)}: {short(ids)} of {short(popularity.ids_used)} ids"
    end = math.log(most_ids)
    across = Axis(0, end, [(0, "1"), (end, f"{short(most_ids)} ids")])
    chart = Chart(name, across, Axis(0, 1, [(1, "")]), note=words, frame=SMALL)
    chart.guide((0, _COVERED), (end, _COVERED))
    num_points = max(round(_NUM_POINTS * math.log(popularity.ids_used + 1) / math.log(most_ids + 1)), 2)
    k = np.geomspace(1, popularity.ids_used, num_points)
    points = list(zip(np.log(k).tolist(), popularity.covered(k).tolist(), strict=True))
    chart.line(points, "first")
    return chart


def dense_chart(column: DenseColumn, values: DenseValues) -> Chart:
    """A histogram of the values as a model sees them; below are the raw values at its ends."""
    edges, counts = values.histogram(_NUM_BARS)
    most = max(*counts, 1)
    ends = (edges[0], (edges[0] + edges[-1]) / 2, edges[-1])
    across = Axis(edges[0], edges[-1], [(value, short(raw(value, column))) for value in ends])
    note = f"{percent(column.missing_rate)} missing; peak {percent(most / values.count)}"
    chart = Chart(column.name, across, Axis(0, most, []), note=note, frame=SMALL)
    tips = [
        f"{short(raw(low, column))} to {short(raw(high, column))}: {count:,} rows, {percent(count / values.count)}"
        for (low, high), count in zip(pairwise(edges), counts, strict=True)
    ]
    chart.steps(edges, counts, "first", tips)
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
