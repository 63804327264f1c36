"""Text → columns of raw values, a row group at a time, and rejected lines."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrm_app.dataset.dictionary import JaggedColumns
from dlrm_app.logs import fields, lines
from dlrm_app.logs.derived import derive
from dlrm_app.logs.fields import MISSING_KEY
from dlrm_app.logs.null_words import null_values, set_missing
from dlrm_app.logs.sources.feeds import LineUnit
from dlrm_app.logs.sources.text_units import MAX_LINE
from dlrm_app.logs.sources.units import Block
from dlrm_app.logs.spec import (
    ELEMENT_WEIGHTS,
    FORMATTED,
    OTHER_LABEL,
    LogColumn,
    Spec,
    list_slots,
    weight_slots,
)
from dlrm_app.logs.time_format import ROOM, compile_format
from dlrm_app.text import json_text

REJECTS = "rejects.jsonl"
EXCERPT_BYTES = 120
OPENS_A_QUOTE = "opens a quote that its line does not close"
_SHOWN_BYTES = 60
_RULES = {
    "label": "0 or 1",
    "weight": "a number from 0 on, within the range of float32",
    ELEMENT_WEIGHTS: "a number from 0 on, within the range of float32",
    "integer": "a whole number within ±(2^63 - 1)",
    "float": "a number within the range of float32",
    "score": "a probability, from 0 to 1",
    "hex": "1 to 8 hex digits",
    "string": "UTF-8 without NUL",
    "seconds": "seconds since 1970, of a year from 1 to 9999 (other kinds of times: milliseconds, iso)",
    "milliseconds": "milliseconds since 1970, of a year from 1 to 9999",
    FORMATTED: "a time as its format says",
    "iso": "a time such as 2026-11-23T17:09:08, also with a fraction and Z or +01:00, or a date, or 2026112317",
}
NULLS = ("null", "none", "na", "n/a", "nan", "nil", "\\n", "-", "?")
_KINDS: dict[str | tuple[str, str | None], int] = {
    "label": fields.LABEL,
    "weight": fields.WEIGHT,
    (OTHER_LABEL, "label"): fields.OTHER_LABEL,
    ELEMENT_WEIGHTS: fields.ELEMENT_WEIGHT,
    ("dense", "integer"): fields.DENSE_INTEGER,
    ("dense", "float"): fields.DENSE_FLOAT,
    ("dense", "score"): fields.DENSE_SCORE,
    ("sparse", "integer"): fields.KEY_INTEGER,
    ("sparse", "hex"): fields.KEY_HEX,
    ("sparse", "string"): fields.KEY_STRING,
    ("time", "seconds"): fields.TIME_SECONDS,
    ("time", "milliseconds"): fields.TIME_MILLISECONDS,
    ("time", "iso"): fields.TIME_ISO,
    ("time", FORMATTED): fields.TIME_FORMAT,
}
_ALL_LINES = 1 << 62
_NO_STATES = np.zeros(0, np.uint8)
_MAX_REJECTS = 4096
_FIRST_LIST_ROOM = 4
_MOST_VALUES, _GROWTH = 1 << 22, 4
"""The values that arrays have room for at first, at most, and how many times as much they get when they are full."""
_STAGGER = 72
"""Extra values in each column's array. If columns were a power of two apart, the places to which the values of a row
are written would all share a few lines of the processor's caches."""


class RawList(NamedTuple):
    """A column of lists. Row r holds ``keys[ends[r]:ends[r + 1]]``, with their spans."""

    ends: NDArray[np.int64]
    keys: NDArray[np.uint64]
    spans: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64]) -> "RawList":
        """The lists of ``rows`` alone, given by their numbers in rising order."""
        sizes = np.diff(self.ends)
        is_taken = np.zeros(len(sizes), bool)
        is_taken[rows] = True
        items = np.flatnonzero(np.repeat(is_taken, sizes))
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[rows], dtype=np.int64)])
        return RawList(ends, self.keys[items], self.spans[items[: len(self.spans)]])

    def emptied(self, rows: NDArray[np.bool_]) -> "RawList":
        """The lists, empty where ``rows`` is True."""
        if not rows.any():
            return self
        ends, keys, spans = self
        sizes = np.diff(ends)
        kept = np.flatnonzero(~np.repeat(rows, sizes))
        ends = np.concatenate([ends[:1], np.cumsum(np.where(rows, 0, sizes))])
        return RawList(ends, keys[kept], spans[kept] if len(spans) else spans)

    def cut(self, first: int | None, last: int | None) -> "RawList":
        """The ``first`` elements of each list, or its ``last`` ones; all if both are None."""
        most = first or last
        sizes = np.diff(self.ends)
        if most is None or not (sizes > most).any():
            return self
        kept = np.minimum(sizes, most)
        begins = self.ends[:-1] if first else self.ends[1:] - kept
        items = np.arange(self.ends[-1])
        is_kept = (items >= np.repeat(begins, sizes)) & (items < np.repeat(begins + kept, sizes))
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
        spans = self.spans[: len(items)][is_kept] if len(self.spans) else self.spans
        return RawList(ends, self.keys[: len(items)][is_kept], spans)


@dataclass(frozen=True, slots=True)
class RawColumns:
    """R rows: labels uint8 [R], dense float64 [N, R] (NaN if missing), keys uint64 [F, R] (MISSING_KEY if missing),
    with derived columns; times float64 [T, R], seconds since 1970 (NaN if missing); weights float64 [R], 1 if rows have
    none; other labels float64 [L - 1, R] (NaN if missing).
    ``element_weights``: lists whose keys are the bits of float64, one for each element of their list.

    Spans, if they are kept, are the positions of the keys' values in the text.
    """

    labels: NDArray[np.uint8]
    dense: NDArray[np.float64]
    keys: NDArray[np.uint64]
    one_hot: JaggedColumns[np.uint64]
    """The bits of the dense columns, then the keys, all uint64."""
    spans: NDArray[np.int64]
    lists: Sequence[RawList]
    times: NDArray[np.float64]
    weights: NDArray[np.float64]
    other_labels: NDArray[np.float64]
    element_weights: Sequence[RawList] = ()

    def take(self, rows: NDArray[np.int64]) -> "RawColumns":
        """Copies ``rows``, given by their numbers in rising order."""
        values = np.concatenate([self.dense.view(np.uint64)[:, rows], self.keys[:, rows]])
        begins = np.arange(len(values)) * len(rows)
        num_dense = len(self.dense)
        return RawColumns(
            self.labels[rows],
            values[:num_dense].view(np.float64),
            values[num_dense:],
            JaggedColumns(values.reshape(-1), begins, begins + len(rows)),
            self.spans[:, rows] if self.spans.shape[1] else self.spans,
            [each.take(rows) for each in self.lists],
            self.times[:, rows],
            self.weights[rows],
            self.other_labels[:, rows],
            [each.take(rows) for each in self.element_weights],
        )

    def sparse_keys(self, spec: Spec) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64]]]:
        """(keys, spans) of each sparse column; for lists, those of all rows together."""
        for is_list, slot in list_slots(spec).values():
            if is_list:
                stop = self.lists[slot].ends[-1]
                yield self.lists[slot].keys[:stop], self.lists[slot].spans[:stop]
            else:
                yield self.keys[slot], self.spans[slot]


class RejectedLine(NamedTuple):
    """A line of rejects.jsonl.

    ``line`` counts from 0 within a unit, where ``file`` is None, and from 1 within a file.
    """

    file: str | None
    line: int
    reason: str
    column: str | None
    excerpt: str


def _describe(reject: list[int], spec: Spec, text: NDArray[np.uint8]) -> RejectedLine:
    """Turns a row of ``lines.parse_lines``'s rejects into a record."""
    line, start, end, reason, detail, first, behind = reject
    value = _text(text, first, behind, _SHOWN_BYTES)
    if reason == lines.UNLIKE:
        words, excerpt = (
            unlike_sizes(spec.fields[detail], first, behind),
            _text(text, start, end, EXCERPT_BYTES),
        )
        return RejectedLine(None, line, words, spec.fields[detail].name, excerpt)
    column = spec.fields[detail] if reason in (lines.FIELD, lines.OPEN_QUOTE) else None
    if column is None:
        others = {lines.BLANK: "blank line", lines.TOO_LONG: f"longer than {MAX_LINE:,} bytes"}
        words = others.get(reason, f"{detail} columns, expected {len(spec.fields)}")
    elif reason == lines.OPEN_QUOTE:
        words = f"{column.name} is {value!r}, {OPENS_A_QUOTE}: a value cannot hold a line break"
    else:
        words = bad_value(column, value)
    excerpt = _text(text, start, end, EXCERPT_BYTES)
    return RejectedLine(None, line, words, column.name if column else None, excerpt)


NEVER_MISSING = ("label", "weight", ELEMENT_WEIGHTS)
"""Roles whose values null words do not apply to."""


def rule_name(column: LogColumn) -> str:
    """The name of the rule of a column's values: its role if that says all, otherwise its kind."""
    return column.role if column.role in NEVER_MISSING else column.kind or ""


def bad_value(column: LogColumn, value: str) -> str:
    """The reason why ``value`` is not a value of ``column``, with a cure if ``value`` suggests one."""
    rule = _RULES[rule_name(column)]
    if column.brackets and not re.fullmatch(
        rf"[ \t]*\{column.brackets[0]}.*\{column.brackets[1]}[ \t]*", value, re.DOTALL
    ):
        return f"{column.name} is {value!r}, must be a list in {column.brackets}"
    words = (
        f"{column.name} is {value!r}, {'must' if column.separator is None else 'each element must'} be {rule}"
    )
    if value.lower() in NULLS and column.role not in NEVER_MISSING:
        return f"{words}: if it means a missing value, add it to dataset.null_values"
    if column.role == "sparse" and column.kind == "integer" and re.fullmatch(r"[+-]?\d{19,}", value):
        return f"{words}: take kind: string"
    if column.kind == "integer" and re.fullmatch(r"[+-]?\d+\.0*", value):
        return f"{words}: write it without the point" + ", or take kind: float" * (column.role == "dense")
    return words


def unlike_sizes(column: LogColumn, num_weights: int, num_elements: int) -> str:
    """The reason why the element weights ``column`` do not fit their list."""
    return f"{column.name} has {num_weights} elements, {column.weights_of} has {num_elements}: each needs its weight"


def _text(text: NDArray[np.uint8], start: int, stop: int, most: int) -> str:
    return text[start : min(stop, start + most)].tobytes().decode("utf-8", "backslashreplace")


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


class Parser:
    """Collects rows of ``spec`` in arrays of ``capacity`` rows, which are reused.

    Arrays of many columns begin with few rows and grow: the system clears memory that few rows of a unit would not use.
    """

    _labels: NDArray[np.uint8]
    _values: NDArray[np.uint64]
    _spans: NDArray[np.int64]
    _list_ends: NDArray[np.int64]

    def __init__(self, spec: Spec, capacity: int, *, keep_spans: bool = False) -> None:
        self.spec = spec
        self._capacity = capacity
        self._keep_spans = keep_spans
        self._marks = (ord(spec.delimiter), ord(spec.quote) if spec.quote else -1)
        one_hot = [column.name for column in spec.sparse if column.separator is None]
        self._columns = column_codes(spec)
        self._nulls = {
            column.name: nulls
            for column in spec.fields
            if len(nulls := null_values(kind_code(column), spec.null_values))
        }
        self._num_dense = len(spec.beside) + len(spec.dense)
        weights = [
            (place, *weight_slots(spec)[column.name])
            for place, column in enumerate(spec.fields)
            if column.role == ELEMENT_WEIGHTS
        ]
        self._weighed = np.array(weights, np.int64).reshape(-1, 3)
        self._one_hot, self._lists = len(one_hot), len(spec.sparse) - len(one_hot) + len(weights)
        self.rows = 0
        self._make_room(min(capacity, max(_MOST_VALUES // (self._num_dense + len(spec.sparse) + 1), 1)))
        self._list_keys = np.empty((self._lists, 0), np.uint64)
        self._list_spans = np.zeros((self._lists, 0, 2), np.int64)
        self._widen_lists(_FIRST_LIST_ROOM * len(self._labels))
        self._rejects = np.empty((_MAX_REJECTS, 7), np.int64)

    def _make_room(self, room: int) -> None:
        """Gives the arrays ``room`` rows, the first of which are those collected so far."""
        rows, spans_room = self.rows, room if self._keep_spans else 0
        labels = np.zeros(room, np.uint8)
        values = np.empty((self._num_dense + self._one_hot, room + _STAGGER), np.uint64)
        spans = np.zeros((self._one_hot, spans_room, 2), np.int64)
        list_ends = np.zeros((self._lists, room + 1), np.int64)
        if rows:
            labels[:rows], values[:, :rows] = self._labels[:rows], self._values[:, :rows]
            spans[:, : min(rows, spans_room)] = self._spans[:, : min(rows, spans_room)]
            list_ends[:, : rows + 1] = self._list_ends[:, : rows + 1]
        self._labels, self._values, self._spans, self._list_ends = labels, values, spans, list_ends
        self._dense, self._keys = values[: self._num_dense].view(np.float64), values[self._num_dense :]

    def _widen_lists(self, more: int) -> None:
        self._list_keys = np.pad(self._list_keys, ((0, 0), (0, more)))
        self._list_spans = np.pad(self._list_spans, ((0, 0), (0, more * self._keep_spans), (0, 0)))

    @property
    def is_full(self) -> bool:
        return self.rows == self._capacity

    def parse(
        self, text: NDArray[np.uint8], start: int, stop: int, num_lines: int
    ) -> tuple[int, int, list[RejectedLine]]:
        """Reads up to ``num_lines`` lines of text[start:stop], until the rows are full or many are rejected.

        Returns (position after the last line read, lines read, rejects among them).
        """
        out = (self._labels, self._dense, self._keys, self._spans)
        at, self.rows, count, num_rejects, why = lines.parse_lines(
            *(text, start, stop, num_lines, self._marks, self._columns, self._weighed, out),
            *((self._list_ends, self._list_keys, self._list_spans), self.rows, self._rejects),
        )
        if why == lines.ROWS_FULL and self.rows < self._capacity:
            self._make_room(min(_GROWTH * len(self._labels), self._capacity))
        if why == lines.LISTS_FULL:
            self._widen_lists(self._list_keys.shape[1] + MAX_LINE)
        return at, count, [_describe(row, self.spec, text) for row in self._rejects[:num_rejects].tolist()]

    def take(self) -> RawColumns:
        """The collected rows, as views that are valid until the next parse."""
        rows, self.rows = self.rows, 0
        self._set_missing(rows)
        lists = list(map(RawList, self._list_ends[:, : rows + 1], self._list_keys, self._list_spans))
        return raw_columns(self.spec, self._labels[:rows], self._values, rows, self._spans[:, :rows], lists)

    def _set_missing(self, rows: int) -> None:
        """Removes the values that null words stand for, in the first ``rows`` rows."""
        for slot, column in enumerate([*self.spec.beside, *self.spec.dense]):
            if (nulls := self._nulls.get(column.name)) is not None:
                numbers = self._dense[slot, :rows]
                set_missing(numbers, nulls, np.nan, numbers, _NO_STATES)
        for name, (is_list, slot) in list_slots(self.spec).items():
            if (nulls := self._nulls.get(name)) is not None:
                keys = (
                    self._list_keys[slot, : self._list_ends[slot, rows]]
                    if is_list
                    else self._keys[slot, :rows]
                )
                set_missing(keys, nulls, MISSING_KEY, keys, _NO_STATES)


def raw_columns(
    spec: Spec,
    labels: NDArray[np.uint8],
    values: NDArray[np.uint64],
    rows: int,
    spans: NDArray[np.int64],
    lists: Sequence[RawList],
) -> RawColumns:
    """Makes ``rows`` rows with their derived columns.

    ``values`` [W + T + N + F, R or more]: those of ``spec.beside`` come first. ``lists``: by ``list_slots``, then by
    ``weight_slots``.
    """
    num_beside, num_dense = len(spec.beside), len(spec.beside) + len(spec.dense)
    begins = np.arange(num_beside, len(values)) * values.shape[1]
    numbers, keys = values[:num_dense, :rows].view(np.float64), values[num_dense:, :rows]
    list_columns = [column for column in spec.sparse if column.separator is not None]
    are_empty = [are_missing(each) for each in lists[: len(list_columns)]]
    cut = [
        each.emptied(rows).cut(column.first, column.last)
        for each, rows, column in zip(lists, are_empty, list_columns, strict=False)
    ]
    element_weights = [
        lists[slot].emptied(are_empty[of]).cut(column.first, column.last)
        for column, (slot, of) in zip(spec.element_weights, weight_slots(spec).values(), strict=True)
    ]
    weights = numbers[0] if spec.is_weighted else np.broadcast_to(np.float64(1), rows)
    before = num_beside - len(spec.times)
    other_labels = numbers[before - len(spec.other_labels) : before]
    times, dense = numbers[before:num_beside], numbers[num_beside:]
    derive(spec, times, dense, keys, cut)
    one_hot = JaggedColumns(values.reshape(-1), begins, begins + rows)
    return RawColumns(labels, dense, keys, one_hot, spans, cut, times, weights, other_labels, element_weights)


def are_missing(lists: RawList) -> NDArray[np.bool_]:
    """True for each list that is a missing value alone, which is an empty list: text cannot tell these apart."""
    is_missing = lists.keys[: lists.ends[-1]] == MISSING_KEY
    sizes = np.diff(lists.ends)
    is_lone = np.zeros(len(sizes), bool)
    if is_missing.any():
        ones = np.flatnonzero(sizes == 1)
        is_lone[ones] = is_missing[lists.ends[ones]]
    return is_lone


def kind_code(column: LogColumn) -> int:
    """The code of a column's content in ``fields``."""
    return _KINDS.get(column.role) or _KINDS.get((column.role, column.kind), fields.IGNORE)


def _format_codes(column: LogColumn) -> list[int]:
    codes = compile_format(column.format) if column.format else []
    return [*codes, *[0] * (ROOM - len(codes))]


def _separator_code(column: LogColumn) -> int:
    """The code of a list's separator, with its brackets in the next bytes; -1 for a single value."""
    return (
        int.from_bytes(f"{column.separator}{column.brackets or ''}".encode(), "little")
        if column.separator
        else -1
    )


def column_codes(spec: Spec) -> NDArray[np.int64]:
    """Codes for each column of the file, [C, 3 + …]: its content, its output column, its separator or -1, the format of
    a time, null words.

    The columns beside the dense ones come before these.
    """
    nulls = b"".join(bytes([len(text)]) + text for text in map(str.encode, spec.null_values))
    slots = {column.name: slot for slot, column in enumerate([*spec.beside, *spec.dense])}
    slots |= {name: slot for name, (_, slot) in list_slots(spec).items()}
    slots |= {name: slot for name, (slot, _) in weight_slots(spec).items()}
    codes = [
        (
            kind_code(column),
            slots.get(column.name, 0),
            _separator_code(column),
            *_format_codes(column),
            *nulls,
        )
        for column in spec.fields
    ]
    return np.array(codes, np.int64)


class Position:
    """A position in a unit. ``line``: the number of lines, or rows, before it."""

    def __init__(self, spec: Spec, keeps_spans: bool) -> None:
        self.line = self._first_line = 0
        self._spec, self._keeps_spans = spec, keeps_spans
        self._rejects: list[RejectedLine] = []

    def take_rejects(self) -> list[RejectedLine]:
        """The lines rejected since the last call."""
        rejects, self._rejects = self._rejects, []
        return rejects

    def row_lines(self) -> NDArray[np.int64]:
        """The lines in the unit, from 0, of the rows that were read last. Ask before ``take_rejects``."""
        first = self._first_line
        return without(first, self.line, [each.line for each in self._rejects if each.line >= first])


def without(start: int, stop: int, left_out: Sequence[int]) -> NDArray[np.int64]:
    """The numbers of range(start, stop) that are not ``left_out``."""
    keep = np.ones(stop - start, bool)
    keep[np.array(left_out, np.int64) - start] = False
    return np.arange(start, stop)[keep]


class Cursor(Position):
    """A position in the lines of a unit, without the file's header.

    ``keeps_spans``: keeps the positions of strings in ``texts()``.
    """

    def __init__(self, text: LineUnit, spec: Spec, *, keeps_spans: bool = False) -> None:
        super().__init__(spec, keeps_spans)
        if keeps_spans:
            text.load()
        self.text = text
        self._blocks = body(text, spec)
        self._block = Block(np.empty(0, np.uint8), 0, 0)

    def rows(self, capacity: int, until: int | None) -> Iterator[RawColumns]:
        """The rows of lines before number ``until``, up to ``capacity`` at a time, valid until the next request."""
        parser = Parser(self._spec, capacity, keep_spans=self._keeps_spans)
        self._first_line = self.line
        stop = _ALL_LINES if until is None else until
        while self.line < stop:
            if self._block.start == self._block.stop:
                block = next(self._blocks, None)
                if block is None:
                    break
                self._block = block
            text, start, end = self._block
            start, count, rejects = parser.parse(text, start, end, stop - self.line)
            self._rejects += [reject._replace(line=self.line + reject.line) for reject in rejects]
            self._block = Block(text, start, end)
            self.line += count
            if parser.is_full:
                yield parser.take()
                self._first_line = self.line
        if parser.rows:
            yield parser.take()

    def texts(self) -> NDArray[np.uint8]:
        """The text that spans refer to."""
        return self.text.load().text


def body(text: LineUnit, spec: Spec) -> Iterator[Block]:
    """The unit's blocks of lines, without the file's header."""
    for block in text.blocks():
        if spec.header and text.begins_file and block.start < block.stop:
            yield block._replace(start=lines.line_end(block.text, block.start) + 1)
            break
        yield block
    yield from text.blocks()
