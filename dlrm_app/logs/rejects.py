"""Rejected lines: what is wrong with a value, the files of rejects, and the limit of their share."""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from dlrm_app.errors import DataError, Problem
from dlrm_app.logs.spec import ELEMENT_WEIGHTS, FORMATTED, VECTOR, LogColumn
from dlrm_app.text import json_text

REJECTS = "rejects.jsonl"


EXCERPT_BYTES = 120


OPENS_A_QUOTE = "opens a quote that its line does not close"
REPEATS_THE_HEADER = "repeats the header, as of files that were joined: leave it out"


_RULES = {
    "label": "0 or 1",
    "weight": "a number from 0 on, within the range of float32",
    ELEMENT_WEIGHTS: "a number from 0 on, within the range of float32",
    VECTOR: "a number within the range of float32",
    "integer": "a whole number within ±(2^63 - 1)",
    "float": "a number within the range of float32",
    "score": "a probability, from 0 to 1",
    "hex": "1 to 8 hex digits",
    "string": "UTF-8 without NUL",
    "seconds": "seconds since 1970, of a year from 1 to 9999 (other kinds of times: milliseconds, microseconds, nanoseconds, iso)",
    "milliseconds": "milliseconds since 1970, of a year from 1 to 9999",
    "microseconds": "microseconds since 1970, of a year from 1 to 9999",
    "nanoseconds": "nanoseconds since 1970, of a year from 1 to 9999",
    FORMATTED: "a time as its format says",
    "iso": "a time such as 2026-11-23T17:09:08, also with a fraction and Z, UTC or +01:00, or a date, or 2026112317",
}


BEYOND_YEARS = "a time outside of the years 1 to 9999"
"""Stands for the text of such a time, which neither Arrow nor Python writes."""
LIKELY_NULLS = ("null", "none", "na", "n/a", "nan", "nil", "\\n", "-", "?")


class RejectedLine(NamedTuple):
    """A line of rejects.jsonl.

    ``line`` counts from 0 within a unit, where ``file`` is None, and from 1 within a file.
    """

    file: str | None
    line: int
    reason: str
    column: str | None
    excerpt: str


NEVER_MISSING = ("label", "weight", ELEMENT_WEIGHTS)
"""Roles whose values null words do not apply to."""
SAYS_ALL = (*NEVER_MISSING, VECTOR)
"""Roles that say all of their values."""


def rule_name(column: LogColumn) -> str:
    """The name of the rule of a column's values: its role if that says all, otherwise its kind."""
    return column.role if column.role in SAYS_ALL else column.kind or ""


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


def bad_value(column: LogColumn, value: str, shown: str | None = None) -> str:
    """The reason why ``value`` is not a value of ``column``, with a cure if ``value`` suggests one.

    ``shown``: the beginning of the value, where it is long.
    """
    rule, value, whole = _RULES[rule_name(column)], value if shown is None else shown, value
    if value == BEYOND_YEARS:
        return f"{column.name} is {value}, such as infinity of Postgres: write null, or a day of these years"
    if column.weights is not None:
        rule = f"a value, {column.weights!r} and {_RULES[ELEMENT_WEIGHTS]}"
    if column.brackets and not re.fullmatch(
        rf"[ \t]*\{column.brackets[0]}.*\{column.brackets[1]}[ \t]*", value, re.DOTALL
    ):
        return f"{column.name} is {value!r}, must be a list in {column.brackets}"
    if column.brackets and (lost := _lost_elements(column.brackets, whole)):
        return f"{column.name} is {value!r}, {lost}"
    words = (
        f"{column.name} is {value!r}, {'must' if column.separator is None else 'each element must'} be {rule}"
    )
    if value.lower() in LIKELY_NULLS and column.role not in NEVER_MISSING:
        return f"{words}: if it means a missing value, add it to dataset.null_values"
    if column.role == "sparse" and column.kind == "integer" and re.fullmatch(r"[+-]?\d{19,}", value):
        return f"{words}: take kind: string"
    is_float = re.search(r"[.e]", value, re.IGNORECASE) is not None and _NUMBER.fullmatch(value) is not None
    if is_float and column.role == "sparse" and (column.kind == "integer" or column.whole is not False):
        return f"{words}: floats with a fraction, of 2^53 or more, or with an exponent are no ids"
    if is_float and rule_name(column) in ("weight", ELEMENT_WEIGHTS) and 0 < float(value) < 1:
        return f"{words}: below 1.2e-38 it would be 0 in training, write larger weights or 0"
    if is_float and column.kind == "integer":
        return f"{words}: take kind: float"
    if column.kind == "string" and (byte := re.search(r"\\x([89a-f][0-9a-f])", whole)):
        return f"{words}: the byte {byte[1]} is not UTF-8, write the file in UTF-8 (iconv -f latin1 -t utf-8)"
    return words


def _lost_elements(brackets: str, value: str) -> str:
    """The reason why the elements of a list in ``brackets`` cannot be read; empty if the brackets are not the reason."""
    inside = value.strip(" \t\r\n")[1:].lstrip(" \t\r\n")
    if inside.startswith(brackets[0]):
        return "holds lists in lists: write one list for each column"
    if re.search(r"(^|[\s,;|])(\.\.\.|…)", inside):
        return "has ... in place of elements, which are lost: print lists whole (numpy.set_printoptions(threshold=sys.maxsize))"
    if re.search(r"(^|[\s,;|])['\"]", inside):
        return "each element must be of its kind, and quotes around it may not hold the separator"
    return ""


def unlike_sizes(column: LogColumn, num_weights: int, num_elements: int) -> str:
    """The reason why the element weights ``column`` do not fit their list, or vectors not their size."""
    if column.role == VECTOR:
        return f"{column.name} has {num_weights} numbers, its size is {num_elements}"
    return f"{column.name} has {num_weights} elements, {column.weights_of} has {num_elements}: each needs its weight"


def write_rejects(path: Path, rejects: Iterable[RejectedLine]) -> None:
    """Writes one JSON object a line."""
    with path.open("w", encoding="utf-8") as file:
        for reject in rejects:
            known = {key: part for key, part in reject._asdict().items() if part is not None}
            file.write(json_text(known) + "\n")


def read_rejects(path: Path) -> Iterator[RejectedLine]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield RejectedLine(**{"file": None, "column": None, **json.loads(line)})


Place = tuple[str | None, int, str]
"""The file, the line and the reason of a malformed line."""
MAX_SHOWN = 5
"""The number of malformed lines that an error shows."""


def refuse_rejects(
    num_rejects: int, num_lines: int, max_fraction: float, rejects: Iterable[Place], cure: str
) -> None:
    """Raises DataError, with the first ``rejects``, if their share of all lines is above ``max_fraction``."""
    if num_rejects <= max_fraction * num_lines:
        return
    rule = f"allows fewer malformed lines than {num_rejects:,} of {num_lines:,}"
    shown = [
        Problem(f"{file}:{line}", f"is malformed: {reason}")
        for file, line, reason in islice(rejects, MAX_SHOWN)
    ]
    raise DataError(Problem(f"rejects.max_fraction={max_fraction:g}", rule, cure), *shown)
