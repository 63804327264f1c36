"""What a check says of splits and features, as tables: for the log and for the page."""

from collections.abc import Mapping
from typing import Any

from dlrm_app.check.scan import Findings
from dlrm_app.dataset.manifest import Manifest, SparseColumn
from dlrm_app.table import Cell, Column, Columns, integer, share
from dlrm_app.text import NONE, bytes_text, fixed, percent, short

SPLIT_COLUMNS: Columns = (
    *("split", "rows", "click rate", "rejected lines", "shards", "size"),
    Column(
        "also in train", "rows with the same values as a training row; for train, as another training row"
    ),
    Column("expected", "if the split's rows were drawn like the training rows"),
    Column("same label too", "those of them whose label is the same as well"),
)
DENSE_COLUMNS: Columns = (
    *("dense feature", "missing"),
    *(Column(name, "after the transform, missing ones included") for name in ("zero", "min", "mean", "max")),
    Column("transform", is_words=True),
)


def split_rows(manifest: Manifest, findings: Findings) -> list[list[str | Cell]]:
    """A row of SPLIT_COLUMNS for every split."""
    total = max(sum(split.rows for split in manifest.splits.values()), 1)
    return [
        [
            name,
            Cell(f"{split.rows:,}", split.rows, split.rows / total),
            share(None if split.positives is None else split.positives / max(split.rows, 1)),
            integer(split.rejects),
            integer(len(split.shards)),
            bytes_text(sum(shard.bytes for shard in split.shards)),
            *_overlap_cells(findings, name),
        ]
        for name, split in manifest.splits.items()
    ]


def _overlap_cells(findings: Findings, split: str) -> list[str | Cell]:
    """Rows also in train, how many are expected, those with the same label."""
    overlap = findings.overlap.get(split)
    if overlap is None:
        return [NONE, NONE, NONE]
    repeated = f"{overlap.repeated:,} ({percent(overlap.share)})"
    return [repeated, fixed(overlap.expected, 0), integer(overlap.same_label)]


def overlap_note(findings: Findings) -> str:
    """Names the splits that share too many rows with train; empty without any."""
    names = [name for name, overlap in findings.overlap.items() if overlap.is_suspicious]
    if not names:
        return ""
    return (
        f"note: {' and '.join(names)} share more rows with train than repeats within train explain: "
        "was the input split as it should be?"
    )


def sparse_columns(manifest: Manifest, findings: Findings) -> Columns:
    """The headings of ``sparse_rows``."""
    return (
        *("sparse feature", "table rows"),
        Column("ids used", f"different ids in {' and '.join(findings.studied)}"),
        Column("values", "different raw values"),
        Column("colliding", "raw values that share their id with another one"),
        "missing",
        Column("top 1", "share of lookups that go to the most frequent id"),
        Column("top 10", "share of lookups that go to the ten most frequent ids"),
        *(
            Column(f"unseen in {name}", "share of lookups of ids that train does not have")
            for name in _other_splits(manifest, findings)
        ),
    )


def sparse_rows(manifest: Manifest, findings: Findings) -> list[list[str | Cell]]:
    """A row for every sparse feature."""
    rows: list[list[str | Cell]] = []
    for column in manifest.sparse:
        popularity = findings.sparse[column.name]
        unseen = [
            share(findings.unseen_share(column.name, name)) for name in _other_splits(manifest, findings)
        ]
        rows.append(
            [
                column.name,
                integer(column.num_embeddings),
                integer(popularity.ids_used),
                _count(column, column.distinct),
                _count(column, column.collisions),
                share(column.missing_rate),
                share(popularity.top_share(1)),
                share(popularity.top_share(10)),
                *unseen,
            ]
        )
    return rows


def dense_rows(manifest: Manifest, findings: Findings) -> list[list[str | Cell]]:
    """A row of DENSE_COLUMNS for every dense feature."""
    rows: list[list[str | Cell]] = []
    for column in manifest.dense:
        values = findings.dense[column.name]
        numbers = [short(v) if values.count else NONE for v in (values.low, values.mean, values.high)]
        zeros = share(values.zeros / max(values.count, 1))
        rows.append([column.name, share(column.missing_rate), zeros, *numbers, recipe(column.transform)])
    return rows


def recipe(value: Mapping[str, Any], is_list: bool = False) -> str:
    """An encoding or transform in a few words."""
    words = [str(value.get("kind", ""))] + ["lists"] * is_list
    words += [
        f"{key} {short(part) if isinstance(part, float) else part}"
        for key, part in value.items()
        if key in ("function", "file", "raw", "column", "mean", "deviation")
    ]
    if "multi_hot" in value:
        words.append(f"{value['multi_hot'].get('size')} ids by {value['multi_hot'].get('rule')}")
    return ", ".join(words)


def _other_splits(manifest: Manifest, findings: Findings) -> list[str]:
    return [name for name in manifest.splits if name not in findings.studied]


def _count(column: SparseColumn, number: int | None) -> str:
    return NONE if number is None else f"{'≈' * column.estimated}{number:,}"
