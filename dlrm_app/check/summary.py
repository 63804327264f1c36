"""What a check found, on one page of text."""

from dlrm_app.check.scan import Findings
from dlrm_app.check.tables import (
    DENSE_COLUMNS,
    SPLIT_COLUMNS,
    dense_rows,
    overlap_note,
    sparse_columns,
    sparse_rows,
    split_rows,
)
from dlrm_app.table import text_table
from dlrm_app.text import count


def summary(findings: Findings) -> str:
    """The splits, then every feature."""
    manifest = findings.manifest
    parts = [text_table(SPLIT_COLUMNS, split_rows(manifest, findings))]
    if findings.overlap:
        parts.append("(also in train: the same values but for the label; of train itself: more than once)")
    if note := overlap_note(findings):
        parts.append(note)
    parts += ["", text_table(sparse_columns(manifest, findings), sparse_rows(manifest, findings))]
    if manifest.dense:
        parts += ["", text_table(DENSE_COLUMNS, dense_rows(manifest, findings))]
    return "\n".join(parts)


def verdict(problems: list[str]) -> str:
    """``no problems``, or how many there are."""
    return f"{count(len(problems), 'problem')} found" if problems else "everything is as the manifest says"
