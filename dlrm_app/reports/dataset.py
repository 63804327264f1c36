"""dataset.html: the contents of a dataset on one page that needs nothing from elsewhere."""

import logging
from collections.abc import Sequence
from html import escape
from itertools import accumulate, pairwise

import numpy as np

from dlrm_app.check.check_dataset import Findings
from dlrm_app.check.tables import dense_table, overlap_note, recipe, sparse_table, split_table
from dlrm_app.dataset.lineage import growth_table
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.files import write_text
from dlrm_app.reports.chart import SPLIT_STYLES, WIDE, Axis, Chart, charts_html, linear_axis
from dlrm_app.reports.page import Tile, configuration, page, tiles
from dlrm_app.table import Cell, Column, Columns, Rows, html_table, integer
from dlrm_app.text import bytes_text, percent, percent_tick, short

PAGE = "dataset.html"
_MOST_BUCKETS = 80
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
    return f"<h2>Sparse features</h2>{table}"


def _dense(findings: Findings) -> str:
    if not findings.manifest.dense:
        return ""
    return f"<h2>Dense features</h2>{html_table(*dense_table(findings))}"


def _origin(manifest: Manifest) -> str:
    columns: Columns = ["file", Column("split", is_words=True), "rows", "size", "checksum of the text"]
    rows: Rows = [
        [source.path, source.split, integer(source.rows), bytes_text(source.bytes), source.checksum]
        for source in manifest.sources
    ]
    sources = html_table(columns, rows) if rows else ""
    return f"<h2>Origin</h2>{sources}{configuration(manifest.config) if manifest.config else ''}"
