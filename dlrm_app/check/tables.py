"""The figures of splits and features as tables."""

import logging
from collections.abc import Mapping
from typing import Any

from dlrm_app.check.check_dataset import Findings
from dlrm_app.dataset.lineage import growth_table
from dlrm_app.table import Cell, Column, Columns, Rows, integer, share, text_table
from dlrm_app.text import NONE, bytes_text, percent, short

logger = logging.getLogger(__name__)

Table = tuple[Columns, Rows]


def log_tables(findings: Findings) -> None:
    """Logs the splits, then every feature."""
    parts = [text_table(*split_table(findings))]
    if findings.overlap:
        parts.append("(also in train: the same values except the label; of train itself: more than once)")
    if note := overlap_note(findings):
        parts.append(note)
    parts += ["", text_table(*sparse_table(findings))]
    lineage = findings.manifest.lineage
    if lineage and lineage.growth:
        parts += ["", f"day {lineage.day}:", text_table(*growth_table(lineage))]
    if findings.manifest.dense:
        parts += ["", text_table(*dense_table(findings))]
    logger.info("\n".join([*parts, ""]))


def split_table(findings: Findings) -> Table:
    """A row for every split."""
    heads = ("split", "rows", "click rate", "rejected lines", "shards", "size", "also in train")
    rows: list[list[str | Cell]] = []
    for name, split in findings.manifest.splits.items():
        shared = NONE
        if overlap := findings.overlap.get(name):
            shared = f"{'≈' * overlap.is_estimate}{overlap.repeated:,} ({percent(overlap.repeated / max(split.rows, 1))})"
        row: list[str | Cell] = [
            name,
            integer(split.rows),
            share(None if split.positives is None else split.positives / max(split.rows, 1)),
            integer(split.rejects),
            integer(len(split.shards)),
            bytes_text(sum(shard.bytes for shard in split.shards)),
            shared,
        ]
        rows.append(row)
    return heads, rows


def overlap_note(findings: Findings) -> str:
    """Names the splits that share too many rows with train; empty without any."""
    names = [name for name, overlap in findings.overlap.items() if overlap.is_suspicious]
    if not names:
        return ""
    return (
        f"note: {' and '.join(names)} share more rows with train than repeats within train explain: "
        "was the input split as it should be?"
    )


def sparse_table(findings: Findings) -> Table:
    """A row for every sparse feature."""
    others = [name for name in findings.manifest.splits if name not in findings.studied]
    figures = ("table rows", "ids used", "values", "colliding", "missing", "unknown", "top 1", "top 10")
    columns: Columns = ("sparse feature", *figures, *(f"unseen in {name}" for name in others))
    rows: list[list[str | Cell]] = []
    for column in findings.manifest.sparse:
        used, unknown, top = None, None, list[float | None]([None, None])
        if counted := findings.sparse.get(column.name):
            used, unknown, top = counted.ids_used, counted.unknown_share, [counted.top(1), counted.top(10)]
        values = [
            NONE if number is None else f"{'≈' * column.estimated}{number:,}"
            for number in (column.distinct, column.collisions)
        ]
        unseen = [findings.unseen_share(column.name, name) for name in others]
        shares = map(share, (column.missing_rate, unknown, *top, *unseen))
        rows.append([column.name, integer(column.num_embeddings), integer(used), *values, *shares])
    return columns, rows


def dense_table(findings: Findings) -> Table:
    """A row for every dense feature."""
    figures = ("missing", "zero", "min", "mean", "max")
    columns: Columns = ("dense feature", *figures, Column("transform", is_words=True))
    rows: list[list[str | Cell]] = []
    for column in findings.manifest.dense:
        values = findings.dense[column.name]
        numbers = [short(v) if values.count else NONE for v in (values.low, values.mean, values.high)]
        zeros = share(values.zeros / max(values.count, 1))
        rows.append([column.name, share(column.missing_rate), zeros, *numbers, recipe(column.transform)])
    return columns, rows


def recipe(transform: Mapping[str, Any]) -> str:
    """A transform in a few words."""
    words = [
        f"{key} {short(part) if isinstance(part, float) else part}"
        for key, part in transform.items()
        if key in ("file", "column", "mean", "deviation")
    ]
    return ", ".join([transform["kind"], *words])
