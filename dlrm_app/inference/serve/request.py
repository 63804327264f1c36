"""A request's JSON → lines that the parser reads, each value as a raw log would write it; and what is wrong with it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dlrm_app.preprocess.read.spec import Column, Spec

_FIELD, _ITEM = "\x1f", "\x1e"
"""Separators of the fields of a line, and of the items of a list: no value may hold them, nor a line end."""
_BREAKING = frozenset(f"{_FIELD}{_ITEM}\n\r")
MAX_PROBLEMS = 8
"""Bad rows that an answer names."""
_SHOWN = 60
_JSON_TYPES = {
    "integer": ["integer", "string", "null"],
    "float": ["number", "string", "null"],
    "score": ["number", "string", "null"],
    "hex": ["string", "null"],
    "string": ["string", "integer", "null"],
    "seconds": ["number", "string", "null"],
    "milliseconds": ["number", "string", "null"],
    "iso": ["string", "null"],
}
_PLAIN_TYPES: dict[str, set[type]] = {
    "integer": {str, int},
    "float": {str, int, float},
    "score": {str, int, float},
    "hex": {str},
    "string": {str, int},
    "seconds": {str, int, float},
    "milliseconds": {str, int, float},
    "iso": {str},
}
"""Types of values that stand in a line as ``str`` writes them."""


@dataclass(frozen=True)
class RowProblem:
    """Row number ``row`` of a request, counted from 0, is wrong; ``column`` where it is one column's value."""

    row: int
    column: str | None
    reason: str

    def __str__(self) -> str:
        return f"row {self.row}: {self.reason}"


class RequestError(Exception):
    """A request that is answered with ``status`` and the reason; ``problems`` name the rows."""

    def __init__(self, status: int, reason: str, problems: list[RowProblem] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.problems = problems or []


def bad_rows(problems: list[RowProblem]) -> RequestError:
    """The refusal of a request for its rows."""
    more = f" (and {len(problems) - 1:,} rows more)" if len(problems) > 1 else ""
    return RequestError(422, f"{problems[0]}{more}", problems[:MAX_PROBLEMS])


def parse_body(body: bytes, max_rows: int) -> list[dict[str, object]]:
    """The rows of a request: ``{"rows": [{column: value, …}, …]}``. Raises RequestError."""
    try:
        value = json.loads(body, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            400, f"the body is not JSON: {str(error)[:200] or type(error).__name__}"
        ) from error
    if not isinstance(value, dict) or set(value) != {"rows"} or not isinstance(value["rows"], list):
        raise RequestError(400, 'the body must be {"rows": [{column: value, …}, …]} and nothing else')
    rows: list[dict[str, object]] = value["rows"]
    if not 1 <= len(rows) <= max_rows:
        raise RequestError(
            413 if rows else 422,
            f"a request has 1 to limits.rows={max_rows:,} rows, this one has {len(rows):,}",
        )
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            problem = RowProblem(number, None, "a row is an object of columns and their values")
            raise RequestError(422, str(problem), [problem])
    return rows


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number: leave a missing value out, or give null")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Raises ValueError for a name that is given twice: JSON does not say which one counts."""
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice[:_SHOWN]!r} is given twice")
    return value


class JsonRows:
    """Rows with the columns of ``spec``: a column that is left out, or null, is missing, as in training.

    The label and columns that training ignored may be there, and are not read. ``spec`` of the lines: ``line_spec``.
    """

    def __init__(self, spec: Spec) -> None:
        unlabelled = spec.without_label()
        columns = [column for column in unlabelled.columns if column.role != "ignore"]
        self._columns = {c.name: (number, c) for number, c in enumerate(columns)}
        self._unread = {column.name for column in spec.columns} - set(self._columns)
        fields = [
            column if column.separator is None else replace(column, separator=_ITEM) for column in columns
        ]
        # one more, so that no line is ever blank, which the parser rejects
        fields.append(Column("", "ignore"))
        self.line_spec = replace(
            unlabelled, delimiter=_FIELD, quote=None, header=False, columns=tuple(fields), order=()
        )

    def lines(self, rows: list[dict[str, object]]) -> list[str]:
        """A line for each of ``rows``. Raises RequestError with the first bad value of every bad row."""
        lines, problems = [], []
        for number, row in enumerate(rows):
            line = self._line(number, row)
            if isinstance(line, RowProblem):
                problems.append(line)
            else:
                lines.append(line)
        if problems:
            raise bad_rows(problems)
        return lines

    def _line(self, number: int, row: Mapping[str, Any], *, is_quick: bool = True) -> str | RowProblem:
        """``is_quick``: texts are looked at all at once; looking at each takes longer than all else here."""
        fields = [""] * (len(self._columns) + 1)
        for name, value in row.items():
            known = self._columns.get(name)
            if known is None:
                if name in self._unread:
                    continue
                return RowProblem(number, name, f"{name[:_SHOWN]!r} is no column of the model")
            at, column = known
            try:
                if is_quick and column.separator is None and type(value) in _PLAIN_TYPES[column.kind or ""]:
                    fields[at] = str(value)
                elif value is not None:
                    fields[at] = _text(value, column)
            except ValueError as error:
                return RowProblem(number, name, f"{name} {error}, got {_shown(value)}")
        line = _FIELD.join(fields)
        is_plain = line.isascii() and line.count(_FIELD) == len(self._columns)
        if is_quick and not (is_plain and "\n" not in line and "\r" not in line):
            return self._line(number, row, is_quick=False)
        return line


def _text(value: Any, column: Column) -> str:
    """``value`` as a raw log has it. Raises ValueError with the rule that it breaks."""
    if column.separator is None:
        return _scalar(value, column)
    if not isinstance(value, list):
        raise ValueError("holds lists: put the value in [ ]")
    items = [_scalar(item, column) for item in value if item is not None]  # as nulls inside Parquet's lists
    text = _ITEM.join(items)
    if items and not text:
        raise ValueError("is a list of one missing value, which no raw log holds: give [], or leave it out")
    return text


def _scalar(value: Any, column: Column) -> str:
    if isinstance(value, str):
        _check_text(value, column)
        return value
    if isinstance(value, bool | int | float):
        return _number(value, column)
    raise ValueError("must be a single value, which it is in training")


def _check_text(value: str, column: Column) -> None:
    if not _BREAKING.isdisjoint(value):
        raise ValueError("may not hold line ends or separators of records")
    if column.separator is not None and column.separator in value:
        raise ValueError(f"holds an item with {column.separator!r}, which separates items in the raw log")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError("is not UTF-8") from error


def _number(value: bool | int | float, column: Column) -> str:
    if column.kind == "hex":
        raise ValueError("holds hex digits: put them in quotes")
    if column.kind == "string" and not isinstance(value, int):
        raise ValueError("holds text: put the number in quotes, as it was written in training")
    if isinstance(value, bool):
        return str(value).lower() if column.kind == "string" else str(int(value))
    if column.kind == "integer" and isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value)
    except ValueError:  # an integer of more digits than Python writes
        text = "a number of many digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def request_schema(spec: Spec) -> dict[str, object]:
    """A request with rows of ``spec`` as JSON schema: the columns by name, with what they hold."""
    columns = {c.name: _column_schema(c) for c in spec.columns if c.role in ("dense", "sparse", "time")}
    row = {"type": "object", "properties": columns}
    return {
        "type": "object",
        "required": ["rows"],
        "additionalProperties": False,
        "properties": {"rows": {"type": "array", "minItems": 1, "items": row}},
    }


def _column_schema(column: Column) -> dict[str, object]:
    scalar: dict[str, object] = {"type": _JSON_TYPES[column.kind or ""]}
    return scalar if column.separator is None else {"type": ["array", "null"], "items": scalar}
