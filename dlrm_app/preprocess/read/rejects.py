"""Lines that could not be used: why, in words, and where they are kept."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrm_app.preprocess.read import lines
from dlrm_app.preprocess.read.fields import MAX_LINE
from dlrm_app.preprocess.read.parser import Reject
from dlrm_app.preprocess.read.spec import Column, Spec

REJECTS = "rejects.jsonl"
EXCERPT_BYTES = 120
_RULES = {
    "integer": "is not a whole number within ±(2^63 - 1)",
    "float": "is not a number within the range of float32",
    "hex": "is not 1 to 8 hex digits",
    "string": "is not UTF-8 without NUL",
}


class RejectedLine(NamedTuple):
    """A line of rejects.jsonl. ``line`` counts from 0 in a unit's list, which names no file, and from 1 in a file."""

    line: int
    reason: str
    excerpt: str
    column: str | None = None
    file: str | None = None


def describe(reject: Reject, first_line: int, spec: Spec, text: NDArray[np.uint8]) -> RejectedLine:
    """What to keep of a reject of ``text``, whose first line has the number ``first_line``."""
    shown = text[reject.start : min(reject.end, reject.start + EXCERPT_BYTES)].tobytes()
    return RejectedLine(
        line=first_line + reject.line,
        reason=explain(reject.reason, reject.detail, spec),
        column=spec.columns[reject.detail].name if reject.reason == lines.FIELD else None,
        excerpt=shown.decode("utf-8", "backslashreplace"),
    )


def explain(reason: int, detail: int, spec: Spec) -> str:
    """``detail`` is the number of columns for COLUMNS, the column's index for FIELD."""
    if reason == lines.BLANK:
        return "blank line"
    if reason == lines.TOO_LONG:
        return f"longer than {MAX_LINE:,} bytes"
    if reason == lines.COLUMNS:
        return f"{detail} columns, expected {len(spec.columns)}"
    return f"{spec.columns[detail].name} {_rule(spec.columns[detail])}"


def _rule(column: Column) -> str:
    if column.role == "label":
        return "is not 0 or 1"
    rule = _RULES[column.kind or ""]
    if column.separator is not None:
        return f"holds an element that {rule}"
    return rule


def write_rejects(path: Path, rejects: Iterable[RejectedLine]) -> None:
    """One JSON object a line."""
    with path.open("w", encoding="utf-8") as file:
        for reject in rejects:
            value = {
                "file": reject.file,
                "line": reject.line,
                "reason": reject.reason,
                "column": reject.column,
                "excerpt": reject.excerpt,
            }
            known = {key: part for key, part in value.items() if part is not None}
            file.write(json.dumps(known, ensure_ascii=False) + "\n")


def read_rejects(path: Path) -> Iterator[RejectedLine]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield RejectedLine(**json.loads(line))
