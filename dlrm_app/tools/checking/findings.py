"""The findings of a check of a dataset, and their tables."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from dlrm_app.dataset.label_counts import LabelSums, class_lines, given_lines, label_table
from dlrm_app.dataset.lineage import growth_table
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.dataset.vector_columns import vector_lines
from dlrm_app.errors import Problem
from dlrm_app.records import Json
from dlrm_app.result import Paragraph, Result
from dlrm_app.table import Cell, Column, Columns, Rows, integer, share
from dlrm_app.text import NONE, bytes_text, percent, short
from dlrm_app.tools.checking.distributions import DenseValues, Overlap, Popularity


@dataclass
class Findings(Result):
    """The content of a dataset.

    ``studied``: the splits that features are described by: train if it exists, otherwise all.
    """

    manifest: Manifest
    studied: list[str]
    dense: dict[str, DenseValues]
    sparse: dict[str, Popularity] = field(default_factory=dict)
    """Feature → counts of its ids, for the features whose counts fit into memory."""
    lookups: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(feature, split) → number of ids read."""
    unseen: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(feature, split) → lookups of ids that the studied splits do not have."""
    rows: Counter[str] = field(default_factory=Counter)
    positives: Counter[str] = field(default_factory=Counter)
    weights: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """split → rows read, positives read, and the sum of the weights read."""
    labels: defaultdict[str, list[LabelSums]] = field(default_factory=lambda: defaultdict(list))
    """split → the counts of the other labels read, of each row group."""
    empty_lists: Counter[str] = field(default_factory=Counter)
    overlap: dict[str, Overlap] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def unseen_share(self, feature: str, split: str) -> float | None:
        """The share of a split's lookups whose ids the studied splits do not have; None if not counted."""
        if feature not in self.sparse:
            return None
        return self.unseen[feature, split] / max(self.lookups[feature, split], 1)

    def paragraphs(self) -> Iterable[Paragraph]:
        yield split_table(self)
        if self.overlap:
            yield "(also in train: the same values except the label; of train itself: more than once)"
        if note := overlap_note(self):
            yield note
        for name, split in self.manifest.splits.items():
            if split.weights:
                clicks, rows = self.manifest.clicks_and_rows(name, all_negatives=False)
                yield f"{name}: rows count by {self.manifest.weight}, {rows:,.6g} in all, {clicks:,.6g} of it clicks"
            if (kept := self.manifest.kept_share(name)) < 1:
                clicks, rows = self.manifest.clicks_and_rows(name)
                yield f"{name}: {kept:g} of the negatives was kept; among all rows {percent(clicks / rows)} are clicks"
        if self.manifest.labels:
            yield label_table(self.manifest)
            yield from given_lines(self.manifest)
        yield from class_lines(self.manifest)
        yield ""
        yield sparse_table(self)
        for column in self.manifest.sparse:
            if column.weights:
                yield f"{column.name}: elements count by {column.weights}"
        yield from vector_lines(self.manifest)
        lineage = self.manifest.lineage
        if lineage and lineage.growth:
            yield f"\nday {lineage.day}:"
            yield growth_table(lineage)
        if self.manifest.dense:
            yield ""
            yield dense_table(self)
        if not self.problems:
            yield f"\n{self.manifest.folder}: everything is as the manifest says"


Table = tuple[Columns, Rows]


def split_table(findings: Findings) -> Table:
    heads = ("split", "rows", "click rate", "rejected lines", "shards", "size", "also in train")
    rows: list[list[str | Cell]] = []
    for name, split in findings.manifest.splits.items():
        shared = NONE
        if overlap := findings.overlap.get(name):
            of_all = percent(overlap.repeated / max(split.rows, 1))
            shared = f"{'≈' * overlap.is_estimate}{overlap.repeated:,} ({of_all})"
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
    """A note that names the splits that share too many rows with train; empty if there are none."""
    names = [name for name, overlap in findings.overlap.items() if overlap.is_suspicious]
    if not names:
        return ""
    return (
        f"note: {' and '.join(names)} share more rows with train than repeats within train explain: "
        "was the input split correctly?"
    )


def sparse_table(findings: Findings) -> Table:
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
    figures = ("missing", "zero", "min", "mean", "max")
    columns: Columns = ("dense feature", *figures, Column("transform", is_words=True))
    rows: list[list[str | Cell]] = []
    for column in findings.manifest.dense:
        values = findings.dense[column.name]
        numbers = [short(v) if values.count else NONE for v in (values.low, values.mean, values.high)]
        zeros = share(values.zeros / max(values.count, 1))
        rows.append(
            [column.name, share(column.missing_rate), zeros, *numbers, transform_text(column.transform)]
        )
    return columns, rows


def transform_text(transform: Json) -> str:
    """A transform in a few words."""
    words = [
        f"{key} {short(part) if isinstance(part, float) else part}"
        for key, part in transform.items()
        if key in ("file", "column", "mean", "deviation")
    ]
    return ", ".join([transform["kind"], *words])
