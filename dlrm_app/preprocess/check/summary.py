"""What a check found, on one page of text."""

from collections.abc import Sequence

from dlrm_app.data.manifest import Manifest, SparseColumn
from dlrm_app.display.numbers import bytes_text, count, percent, short
from dlrm_app.preprocess.check.scan import Findings


def summary(manifest: Manifest, findings: Findings) -> str:
    """The splits, then every feature."""
    other = next((name for name in ("val", "test") if name in manifest.splits), None)
    lines = [
        *_split_lines(manifest, findings),
        "",
        *_sparse_lines(manifest, findings, other if "train" in findings.studied else None),
    ]
    if manifest.dense:
        lines += ["", *_dense_lines(manifest, findings)]
    return "\n".join(lines)


def _split_lines(manifest: Manifest, findings: Findings) -> list[str]:
    head = ["split", "rows", "clicks", "rejected", "size", "also in train", "expected", "same label too"]
    rows = []
    for name, split in manifest.splits.items():
        clicks = None if split.positives is None else split.positives / max(split.rows, 1)
        size = bytes_text(sum(shard.bytes for shard in split.shards))
        cells = [name, f"{split.rows:,}", percent(clicks), f"{split.rejects:,}", size]
        rows.append([*cells, *overlap_cells(findings, name)])
    lines = _table(head, rows)
    if findings.overlap:
        lines.append("(also in train: the same values but for the label; of train itself: more than once)")
    suspicious = [name for name, overlap in findings.overlap.items() if overlap.is_suspicious]
    if suspicious:
        lines.append(
            f"note: {' and '.join(suspicious)} share more rows with train than repeats within train explain: "
            "was the input split as it should be?"
        )
    return lines


def overlap_cells(findings: Findings, split: str) -> list[str]:
    """Rows also in train, how many are expected, those with the same label."""
    overlap = findings.overlap.get(split)
    if overlap is None:
        return ["–", "–", "–"]
    return [
        f"{overlap.repeated:,} ({percent(overlap.share)})",
        "–" if overlap.expected is None else f"{overlap.expected:,.0f}",
        "–" if overlap.same_label is None else f"{overlap.same_label:,}",
    ]


def distinct_text(column: SparseColumn) -> str:
    if column.distinct is None:
        return "–"
    return f"{'≈' * column.estimated}{column.distinct:,}"


def colliding_text(column: SparseColumn) -> str:
    if column.collisions is None:
        return "–"
    return f"{'≈' * column.estimated}{column.collisions:,}"


def _sparse_lines(manifest: Manifest, findings: Findings, other: str | None) -> list[str]:
    head = ["sparse feature", "table rows", "ids used", "values", "colliding", "missing", "top 1", "top 10"]
    head += [f"unseen in {other}"] * (other is not None)
    rows = []
    for column in manifest.sparse:
        found = findings.sparse[column.name]
        cells = [
            column.name,
            f"{column.num_embeddings:,}",
            f"{found.ids_used:,}",
            distinct_text(column),
            colliding_text(column),
            percent(column.missing_rate),
            percent(found.top_share(1)),
            percent(found.top_share(10)),
        ]
        cells += [percent(findings.unseen_share(column.name, other))] if other is not None else []
        rows.append(cells)
    return _table(head, rows)


def _dense_lines(manifest: Manifest, findings: Findings) -> list[str]:
    head = ["dense feature", "transform", "missing", "min", "mean", "max", "zero"]
    rows = []
    for column in manifest.dense:
        found = findings.dense[column.name]
        numbers = ["–"] * 3 if not found.count else [short(v) for v in (found.low, found.mean, found.high)]
        zeros = percent(found.zeros / max(found.count, 1))
        rows.append([column.name, column.transform["kind"], percent(column.missing_rate), *numbers, zeros])
    return _table(head, rows)


def verdict(problems: list[str]) -> str:
    """``no problems``, or how many there are."""
    return f"{count(len(problems), 'problem')} found" if problems else "everything is as the manifest says"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of aligned columns, the first to the left and the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
