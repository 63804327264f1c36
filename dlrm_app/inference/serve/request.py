"""A request's JSON → a table of raw values, and problems of the request."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import msgspec
import pyarrow as pa

from dlrm_app.logs.spec import LogColumn, Spec

Row = dict[str, object]
"""A row of a request: column → value."""
MAX_PROBLEMS = 8
"""The number of bad rows that an answer names."""
MAX_REPEATED = 1 << 22
"""The most elements that the lists of a context have in all rows together: each row has them in the model's input."""
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
    value = _decode_request(body)
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
    refuse_size(len(rows), max_rows)
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise bad_rows([RowProblem(number, None, "a row is an object of columns and their values")])
    return ScoringRequest(rows, context)


def refuse_size(num_rows: int, max_rows: int) -> None:
    """Raises RequestError for a request without rows, or with too many."""
    if not 1 <= num_rows <= max_rows:
        reason = f"a request has 1 to limits.rows={max_rows:,} rows, this one has {num_rows:,}"
        raise RequestError(413 if num_rows else 422, reason)


def _decode_request(body: bytes) -> object:
    """The value of ``body``. Raises RequestError unless it is JSON without a name that is given twice.

    msgspec takes 40% of the json module's time, but keeps the last value of such a name, and refuses
    or explains some bodies in other ways; json reads those.
    """
    try:
        value = msgspec.json.decode(body)
        if isinstance(value, dict) and _has_all_names(value, body):
            return value  # all names are there, so none is given twice
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(body, parse_constant=_refuse_constant, object_pairs_hook=object_of)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            400, f"the body is not JSON: {str(error)[:200] or type(error).__name__}"
        ) from error


def _has_all_names(value: dict[str, object], body: bytes) -> bool:
    """True if no name in ``body`` is given twice, as its ``value`` shows. False if it might be."""
    rows, context = value.get("rows"), value.get("context")
    objects = [value, context, *(rows if isinstance(rows, list) else [])]
    pairs = sum(len(each) for each in objects if isinstance(each, dict))
    if body.count(b":") == pairs:  # each name that is given has a colon, and other texts may
        return True
    has_blanks = any(blank + b":" in body for blank in (b" ", b"\t", b"\n", b"\r"))
    return not has_blanks and body.count(b'":') == pairs


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number: leave a missing value out, or give null")


def object_of(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Makes a dict. Raises ValueError for a name that is given twice: JSON does not say which one counts."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError(_twice([name for name, _ in pairs]))
    return value


def refuse_twice(names: Sequence[str]) -> None:
    """Raises RequestError for columns of which one is given twice."""
    if len(set(names)) < len(names):
        raise RequestError(400, _twice(names))


def _twice(names: Sequence[str]) -> str:
    repeated = next(name for name, count in Counter(names).items() if count > 1)
    return f"{repeated[:_SHOWN]!r} is given twice"


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
        self.unread = {column.name for column in spec.columns} - {*self._columns}
        """Columns that rows may have, which are not read."""
        self._types = {column.name: _plain_types(column) for column in columns}
        """Column → the types of its values, or of the items of its lists, that no rule refuses."""
        kinds = dict.fromkeys((c.kind, c.separator is None) for c in columns)
        self._by_kind = [[c for c in columns if (c.kind, c.separator is None) == kind] for kind in kinds]
        """The columns whose values Arrow reads in the same way."""

    def read(self, body: bytes, max_rows: int) -> ScoringRequest:
        """The rows of a request. Raises RequestError with the first bad value of every bad row, or of the context."""
        request = parse_body(body, max_rows)
        # without escapes and in ASCII, no text has a line end, and all are UTF-8
        if not (body.isascii() and b"\\" not in body and self._are_plain(request.rows, body)):
            found = (self._problem(number, row) for number, row in enumerate(request.rows))
            if problems := [problem for problem in found if problem is not None]:
                raise bad_rows(problems)
        if request.context and (problem := self._problem(0, request.context)) is not None:
            raise RequestError(422, f"context: {problem.reason}")
        elements = sum(len(value) for value in request.context.values() if isinstance(value, list))
        if elements * len(request) > MAX_REPEATED:
            rule = f"have {MAX_REPEATED:,} elements at most in all rows together, {elements:,} in each of {len(request):,} here"
            raise RequestError(413, f"context: lists {rule}: send fewer rows at a time")
        return request

    def _are_plain(self, rows: Sequence[Row], body: bytes) -> bool:
        """True if the types of the values alone show that all are valid; checking each value takes longer."""
        for name in set(chain.from_iterable(rows)) - self.unread:
            if name not in self._columns:
                return False
            values: Iterable[object] = [row.get(name) for row in rows]
            if (separator := self._columns[name].separator) is not None:
                lists = [value for value in values if value is not None]
                if not {list}.issuperset(map(type, lists)):
                    return False
                values = list(chain.from_iterable(lists))  # type: ignore[arg-type]  # lists, as was seen
                if separator.encode() in body and any(type(v) is str and separator in v for v in values):
                    return False
            if not self._types[name].issuperset(map(type, values)):
                return False
        return True

    def _problem(self, number: int, row: Row) -> RowProblem | None:
        for name, value in row.items():
            if name in self.unread or value is None:
                continue
            if name not in self._columns:
                return RowProblem(number, name, f"{name[:_SHOWN]!r} is not a column of the model")
            if (fault := _fault(value, self._columns[name])) is not None:
                return RowProblem(number, name, f"{name} {fault}, got {_shown(value)}")
        return None

    def tables(self, rows: Sequence[Row], context: Row | None = None) -> tuple[pa.Table, pa.Table | None]:
        """(``rows``; a row with the columns that only their ``context`` has). ``read`` gave both."""
        if not context:
            return self.table(rows), None
        in_rows = {name for row in rows for name in row}
        if mixed := {name: value for name, value in context.items() if name in in_rows}:
            rows = [{**mixed, **row} for row in rows]
        shared = {name for name in context if name in self._columns} - in_rows
        return self.table(rows, {*self._columns} - shared), self.table([context], shared)

    def table(self, rows: Sequence[Row], names: Collection[str] | None = None) -> pa.Table:
        """The columns ``names`` of ``rows``, or all."""
        names = self._columns if names is None else names
        if not names:  # a table of no columns has rows all the same
            return pa.Table.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
        arrays: dict[str, pa.Array] = {}
        for each in self._by_kind:
            if not (columns := [column for column in each if column.name in names]):
                continue
            values = [row.get(column.name) for column in columns for row in rows]
            arrays |= zip((column.name for column in columns), _arrays(values, columns), strict=True)
        return pa.table(arrays)


def _plain_types(column: LogColumn) -> frozenset[type]:
    texts: dict[str | None, list[type]] = {
        "string": [str, int, bool, *([float] if column.whole else [])],
        "hex": [str],
    }
    return frozenset([type(None), *texts.get(column.kind, [str, int, bool, float])])


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
