"""A request's JSON → lines for the parser, with values written as in a raw log; and problems of the request."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dlrm_app.logs.spec import LogColumn, Spec

_FIELD, _ITEM = "\x1f", "\x1e"
"""Separators of the fields of a line and of the items of a list. No value may contain them or a line end."""
_BREAKING = frozenset(f"{_FIELD}{_ITEM}\n\r")
MAX_PROBLEMS = 8
"""The number of bad rows that an answer names."""
_SHOWN = 60
_PLAIN_TYPES: dict[str, set[type]] = {
    "string": {str, int},
    "integer": {int, str},
    "hex": {str},
    "iso": {str, int},
    "formatted": {str},
    **{kind: {int, float, str} for kind in ("float", "score", "seconds", "milliseconds")},
}
"""Kind of column → types of values that ``str`` writes as in a raw log."""


@dataclass(frozen=True)
class RowProblem:
    """A problem of row number ``row`` of a request, from 0; ``column``: the one whose value is wrong, if it is one."""

    row: int
    column: str | None
    reason: str


class RequestError(Exception):
    """Raised for a request that is answered with ``status`` and the reason; ``problems`` name the rows."""

    def __init__(self, status: int, reason: str, problems: list[RowProblem] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.problems = problems or []


def bad_rows(problems: list[RowProblem]) -> RequestError:
    """The error for a request with bad rows."""
    more = f" (and {len(problems) - 1:,} rows more)" if len(problems) > 1 else ""
    reason = f"row {problems[0].row}: {problems[0].reason}{more}"
    return RequestError(422, reason, problems[:MAX_PROBLEMS])


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
        reason = f"a request has 1 to limits.rows={max_rows:,} rows, this one has {len(rows):,}"
        raise RequestError(413 if rows else 422, reason)
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise bad_rows([RowProblem(number, None, "a row is an object of columns and their values")])
    return rows


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number: leave a missing value out, or give null")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Makes a dict. Raises ValueError for a name that is given twice: JSON does not say which one counts."""
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{repeated[:_SHOWN]!r} is given twice")
    return value


class JsonRows:
    """Reads rows with the columns of ``spec``. A column that is left out or null is missing, as in training.

    The label, and columns that training ignored, are allowed and not read. ``line_spec``: the format of the lines.
    """

    def __init__(self, spec: Spec) -> None:
        unlabelled = spec.without_label()
        columns = [column for column in unlabelled.columns if column.role != "ignore"]
        self._columns = {c.name: (number, c) for number, c in enumerate(columns)}
        self._unread = {column.name for column in spec.columns} - set(self._columns)
        fields = [c if c.separator is None else replace(c, separator=_ITEM, brackets=None) for c in columns]
        # one field more, so that no line is blank: the parser rejects blank lines
        fields.append(LogColumn("", "ignore"))
        self.line_spec = replace(
            unlabelled, delimiter=_FIELD, quote=None, header=False, columns=tuple(fields), order=()
        )

    def lines(self, rows: list[dict[str, object]]) -> list[str]:
        """A line for each of ``rows``. Raises RequestError with the first bad value of every bad row."""
        lines = [self._line(number, row) for number, row in enumerate(rows)]
        if problems := [line for line in lines if isinstance(line, RowProblem)]:
            raise bad_rows(problems)
        return [line for line in lines if isinstance(line, str)]

    def _line(self, number: int, row: Mapping[str, Any], *, is_quick: bool = True) -> str | RowProblem:
        """The line of ``row``.

        ``is_quick``: texts are checked together; checking each takes longer than everything else here.
        """
        fields = [""] * (len(self._columns) + 1)
        for name, value in row.items():
            if name not in self._columns:
                if name in self._unread:
                    continue
                return RowProblem(number, name, f"{name[:_SHOWN]!r} is no column of the model")
            at, column = self._columns[name]
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


def _text(value: Any, column: LogColumn) -> str:
    """``value`` as it is written in a raw log. Raises ValueError with the rule that it breaks."""
    if column.separator is None:
        return _scalar(value, column)
    if not isinstance(value, list):
        raise ValueError("holds lists: put the value in [ ]")
    return _ITEM.join("" if item is None else _scalar(item, column) for item in value)


def _scalar(value: Any, column: LogColumn) -> str:
    if isinstance(value, str):
        if not _BREAKING.isdisjoint(value):
            raise ValueError("may not hold line ends or separators of records")
        if column.separator is not None and column.separator in value:
            raise ValueError(f"holds an item with {column.separator!r}, which separates items in the raw log")
        if value.encode(errors="ignore").decode() != value:
            raise ValueError("is not UTF-8")
        return value
    if not isinstance(value, bool | int | float):
        rule = "must be a single value" if column.separator is None else "holds lists of single values"
        raise ValueError(f"{rule}, as in training")
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
    except ValueError:  # an integer with more digits than Python prints
        text = "a number of many digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
