"""A request's JSON → a table of raw values, and problems of the request."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from dlrm_app.logs.spec import LogColumn, Spec

Row = dict[str, object]
"""A row of a request: column → value."""
MAX_PROBLEMS = 8
"""The number of bad rows that an answer names."""
_SHOWN = 60
_BREAKING, _BREAKING_ITEMS = frozenset("\x1f\n\r"), frozenset("\x1e\x1f\n\r")
"""Line ends and separators of records, which no value, or item of a list, may hold."""
_EMPTY_LISTS = (None, [None], [""])
"""Lists without elements; a single missing element counts as none."""
_TEXTS = ("string", "hex", "iso", "formatted")
"""The kinds of columns whose values are texts, so that numbers among them are texts of digits."""


@dataclass(frozen=True)
class ScoringRequest:
    """The rows of a request, and the columns that all rows share: a user, for example, whose candidates the rows are.

    A column of a row counts before the same one of the context.
    """

    rows: list[Row]
    context: Row = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)


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
    more = f" (and {len(problems) - 1:,} rows more)" if len(problems) > 1 else ""
    reason = f"row {problems[0].row}: {problems[0].reason}{more}"
    return RequestError(422, reason, problems[:MAX_PROBLEMS])


def parse_body(body: bytes, max_rows: int) -> ScoringRequest:
    """Reads ``{"rows": [{column: value, …}, …]}``, also with ``"context": {column: value, …}``. Raises RequestError."""
    try:
        value = json.loads(body, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            400, f"the body is not JSON: {str(error)[:200] or type(error).__name__}"
        ) from error
    if (
        not isinstance(value, dict)
        or {*value} - {"context"} != {"rows"}
        or not isinstance(value["rows"], list)
    ):
        form = '{"rows": [{column: value, …}, …]}'
        raise RequestError(400, f'the body must be {form}, with or without "context": {{column: value, …}}')
    rows, context = value["rows"], value.get("context", {})
    if not isinstance(context, dict):
        raise RequestError(422, "context: must be an object of columns and their values")
    if not 1 <= len(rows) <= max_rows:
        reason = f"a request has 1 to limits.rows={max_rows:,} rows, this one has {len(rows):,}"
        raise RequestError(413 if rows else 422, reason)
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise bad_rows([RowProblem(number, None, "a row is an object of columns and their values")])
    return ScoringRequest(rows, context)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number: leave a missing value out, or give null")


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

    The label, and columns that training ignored, are allowed and not read. ``spec``: the format of the tables.
    """

    def __init__(self, spec: Spec) -> None:
        unlabelled = spec.without_label()
        # JSON has lists of its own, so brackets are not those around a text
        columns = tuple(replace(c, brackets=None) for c in unlabelled.columns if c.role != "ignore")
        self.spec = replace(unlabelled, columns=columns, order=())
        self._columns = {column.name: column for column in columns}
        self._unread = {column.name for column in spec.columns} - {*self._columns}
        self._types = {column.name: _plain_types(column) for column in columns}
        """Column → the types of its values, or of the items of its lists, that no rule refuses."""
        kinds = dict.fromkeys((c.kind, c.separator is None) for c in columns)
        self._by_kind = [[c for c in columns if (c.kind, c.separator is None) == kind] for kind in kinds]
        """The columns whose values Arrow reads in the same way."""

    def read(self, body: bytes, max_rows: int) -> ScoringRequest:
        """The rows of a request. Raises RequestError with the first bad value of every bad row, or of the context."""
        request = parse_body(body, max_rows)
        # without escapes and in ASCII, no text has a line end, and all are UTF-8
        is_plain = body.isascii() and b"\\" not in body
        problems = [
            problem
            for number, row in enumerate(request.rows)
            if not (is_plain and self._is_plain(row)) and (problem := self._problem(number, row))
        ]
        if problems:
            raise bad_rows(problems)
        if request.context and (problem := self._problem(0, request.context)) is not None:
            raise RequestError(422, f"context: {problem.reason}")
        return request

    def _is_plain(self, row: Row) -> bool:
        """True if the types of the values alone show that all are valid; checking each value takes longer."""
        types = self._types
        for name, value in row.items():
            if name not in types:
                if name in self._unread:
                    continue
                return False
            separator = self._columns[name].separator
            if separator is None:
                if type(value) not in types[name]:
                    return False
            elif value is not None and not _is_plain_list(value, types[name], separator):
                return False
        return True

    def _problem(self, number: int, row: Row) -> RowProblem | None:
        for name, value in row.items():
            if name in self._unread or value is None:
                continue
            if name not in self._columns:
                return RowProblem(number, name, f"{name[:_SHOWN]!r} is not a column of the model")
            if (fault := _fault(value, self._columns[name])) is not None:
                return RowProblem(number, name, f"{name} {fault}, got {_shown(value)}")
        return None

    def table(self, rows: Sequence[Row], context: Row | None = None) -> pa.Table:
        """``rows`` with the columns of their ``context``, which ``read`` gave, as a table.

        A column that no row has is made of the context once, and repeated.
        """
        if not context:
            return pa.table(self._arrays(rows, {*self._columns}))
        in_rows = {name for row in rows for name in row}
        if mixed := {name: value for name, value in context.items() if name in in_rows}:
            rows = [{**mixed, **row} for row in rows]
        shared = {name for name in context if name in self._columns} - in_rows
        repeats = pa.array(np.zeros(len(rows), np.int64))
        once = {name: array.take(repeats) for name, array in self._arrays([context], shared).items()}
        arrays = self._arrays(rows, {*self._columns} - shared) | once
        return pa.table({name: arrays[name] for name in self._columns})

    def _arrays(self, rows: Sequence[Row], names: Collection[str]) -> dict[str, pa.Array]:
        """The columns ``names`` of ``rows``."""
        arrays: dict[str, pa.Array] = {}
        for each in self._by_kind:
            if not (columns := [column for column in each if column.name in names]):
                continue
            values = [row.get(column.name) for column in columns for row in rows]
            arrays |= zip((column.name for column in columns), _arrays(values, columns), strict=True)
        return arrays


def _plain_types(column: LogColumn) -> frozenset[type]:
    texts: dict[str | None, list[type]] = {
        "string": [str, int, bool, *([float] if column.whole else [])],
        "hex": [str],
    }
    return frozenset([type(None), *texts.get(column.kind, [str, int, bool, float])])


def _is_plain_list(value: object, types: frozenset[type], separator: str) -> bool:
    if type(value) is not list or not types.issuperset(map(type, value)):
        return False
    return not any(type(item) is str and separator in item for item in value)


def _fault(value: object, column: LogColumn) -> str | None:
    """The rule that ``value`` breaks, of those that only JSON can break."""
    if column.separator is None:
        return _scalar_fault(value, column)
    if not isinstance(value, list):
        return "holds lists: put the value in [ ]"
    faults = (_scalar_fault(item, column) for item in value if item is not None)
    return next((fault for fault in faults if fault is not None), None)


def _scalar_fault(value: object, column: LogColumn) -> str | None:
    if isinstance(value, str):
        if not (_BREAKING if column.separator is None else _BREAKING_ITEMS).isdisjoint(value):
            return "may not hold line ends or separators of records"
        if column.separator is not None and column.separator in value:
            return f"holds an item with {column.separator!r}, which separates items in the raw log"
        return None if value.encode(errors="ignore").decode() == value else "is not UTF-8"
    if not isinstance(value, bool | int | float):
        rule = "must be a single value" if column.separator is None else "holds lists of single values"
        return f"{rule}, as in training"
    if column.kind == "hex":
        return "holds hex digits: put them in quotes"
    if column.kind == "string" and not isinstance(value, int) and not column.whole:
        return "holds text: put the number in quotes, as it was written in training"
    return None


def _arrays(values: Sequence[object], columns: Sequence[LogColumn]) -> list[pa.Array]:
    """The ``values`` of columns of one kind, one column after another, as arrays of Arrow's type for them.

    A column with values of several types has them as texts. With few rows, calls take most of the time, so one call
    makes all columns if it can.
    """
    if columns[0].separator is not None:
        values = [[] if each in _EMPTY_LISTS else each for each in values]
    kind = _kind_of(columns[0])
    size = len(values) // len(columns)
    try:
        array = pa.array(values, kind)
        return [array.slice(place * size, size) for place in range(len(columns))]
    except (pa.ArrowException, TypeError, OverflowError):
        if len(columns) == 1:
            return [_as_texts(values, columns[0])]
        return [
            array
            for place, column in enumerate(columns)
            for array in _arrays(values[place * size : (place + 1) * size], [column])
        ]


def _kind_of(column: LogColumn) -> pa.DataType | None:
    """The type of texts, or of lists of them; None for numbers, whose type Arrow finds."""
    if column.kind not in _TEXTS:
        return None
    return pa.string() if column.separator is None else pa.list_(pa.string())


def _as_texts(values: Sequence[object], column: LogColumn) -> pa.Array:
    if column.separator is None:
        return pa.array([_text(value, column) for value in values], pa.string())
    lists = [[_text(item, column) for item in items] for items in values if isinstance(items, list)]
    return pa.array(lists, pa.list_(pa.string()))


def _text(value: object, column: LogColumn) -> str | None:
    """``value`` as it is written in a raw log."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower() if column.kind == "string" else str(int(value))
    return str(value)


def _shown(value: object) -> str:
    try:
        text = json.dumps(value)
    except ValueError:  # an integer with more digits than Python prints
        text = "a number of many digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
