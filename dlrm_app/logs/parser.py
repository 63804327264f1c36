"""Text → columns of raw values, a row group at a time, and rejected lines."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dlrm_app.logs import lines
from dlrm_app.logs.codes import column_codes, kind_code, sized_codes
from dlrm_app.logs.null_words import null_values, null_words_of, set_missing
from dlrm_app.logs.raw_columns import RawColumns, RawList, raw_columns
from dlrm_app.logs.rejects import (
    EXCERPT_BYTES,
    OPENS_A_QUOTE,
    REPEATS_THE_HEADER,
    RejectedLine,
    bad_value,
    unlike_sizes,
)
from dlrm_app.logs.sources.feeds import LineUnit
from dlrm_app.logs.sources.quoted_breaks import HIDDEN
from dlrm_app.logs.sources.text_units import MAX_LINE
from dlrm_app.logs.sources.units import Block
from dlrm_app.logs.spec import Spec, list_slots
from dlrm_app.logs.strings import MISSING_KEY, parse_string

_SHOWN_BYTES = 60
_ALL_LINES = 1 << 62
_NO_STATES = np.zeros(0, np.uint8)
_MAX_REJECTS = 4096
_FIRST_LIST_ROOM = 4
MOST_VALUES, _GROWTH = 1 << 22, 4
"""The values that arrays have room for at first and at most, and the factor by which full arrays grow."""
_STAGGER = 72
"""Extra values in each column's array. If columns were a power of two apart, the places to which the values of a row
are written would all share a few lines of the processor's caches."""


def _describe(reject: list[int], spec: Spec, text: NDArray[np.uint8]) -> RejectedLine:
    line, start, end, reason, detail, first, behind = reject
    value = _text(text, first, behind, _SHOWN_BYTES)
    if reason == lines.UNLIKE:
        words = unlike_sizes(spec.fields[detail], first, behind)
        excerpt = _text(text, start, end, EXCERPT_BYTES)
        return RejectedLine(None, line, words, spec.fields[detail].name, excerpt)
    column = spec.fields[detail] if reason in (lines.FIELD, lines.OPEN_QUOTE) else None
    if column is None:
        others = {lines.BLANK: "blank line", lines.TOO_LONG: f"longer than {MAX_LINE:,} bytes"}
        others[lines.HEADER] = REPEATS_THE_HEADER
        words = others.get(reason, f"{detail} columns, expected {len(spec.fields)}")
        words += _escaped_quotes(text, reject, spec) if reason == lines.COLUMNS else ""
    elif reason == lines.OPEN_QUOTE:
        words = f"{column.name} is {value!r}, {OPENS_A_QUOTE}: if values hold line breaks, set dataset.line_breaks=true"
        words += _escaped_quotes(text, reject, spec)
    elif spec.header and value == column.name:
        words = REPEATS_THE_HEADER
    else:
        words = bad_value(column, _text(text, first, behind, MAX_LINE), value)
        words += _escaped_quotes(text, reject, spec) if spec.quote and value.startswith(spec.quote) else ""
        if spec.quote is None and value.startswith('"'):
            words += "; it is in quotes, and the description has none: set dataset.quote='\"'"
    excerpt = _text(text, start, end, EXCERPT_BYTES)
    return RejectedLine(None, line, words, column.name if column else None, excerpt)


def _escaped_quotes(text: NDArray[np.uint8], reject: list[int], spec: Spec) -> str:
    """The hint for a rejected line with a backslash before a quote."""
    if spec.quote is None or f"\\{spec.quote}" not in _text(text, reject[1], reject[2], MAX_LINE):
        return ""
    return f"; it has \\{spec.quote} within quotes, as MySQL writes: write a quote within quotes twice"


def _text(text: NDArray[np.uint8], start: int, stop: int, most: int) -> str:
    return text[start : min(stop, start + most)].tobytes().decode("utf-8", "backslashreplace")


class Parser:
    """Collects rows of ``spec`` in arrays of ``capacity`` rows, which are reused.

    Arrays of many columns begin with few rows and grow. The system clears all memory that it gives, and a unit may have
    only a few rows.
    """

    _labels: NDArray[np.uint8]
    _values: NDArray[np.uint64]
    _spans: NDArray[np.int64]
    _list_ends: NDArray[np.int64]

    def __init__(self, spec: Spec, capacity: int, *, keep_spans: bool = False) -> None:
        self.spec = spec
        self._capacity = capacity
        self._keep_spans = keep_spans
        quote, hidden = ord(spec.quote) if spec.quote else -1, HIDDEN if spec.quoting else -1
        self._marks = ord(spec.delimiter), quote, hidden
        num_lists = sum(column.separator is not None for column in spec.sparse)
        self._columns = column_codes(spec)
        self._nulls = {
            column.name: nulls
            for column in spec.fields
            if len(nulls := null_values(kind_code(column), null_words_of(column, spec)))
        }
        self._num_dense = len(spec.extra_numbers) + len(spec.dense)
        self._sized = sized_codes(spec)
        self._header = _header_keys(spec)
        self._one_hot = len(spec.sparse) - num_lists + len(spec.kept)
        self._lists = num_lists + len(spec.element_weights) + len(spec.vectors)
        self.rows = 0
        self._make_room(min(capacity, max(MOST_VALUES // (self._num_dense + len(spec.sparse) + 1), 1)))
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

        Returns (position after the last line read, lines read, rejects among them). Hidden line breaks are restored in
        ``text`` itself, which must be writable.
        """
        form = self._marks, self._columns, self._sized, self._header
        out = (self._labels, self._dense, self._keys, self._spans)
        lists = (self._list_ends, self._list_keys, self._list_spans)
        at, self.rows, count, num_rejects, why = lines.parse_lines(
            text, start, stop, num_lines, *form, out, lists, self.rows, self._rejects
        )
        if why == lines.ROWS_FULL and self.rows < self._capacity:
            self._make_room(min(_GROWTH * len(self._labels), self._capacity))
        if why == lines.LISTS_FULL:
            self._widen_lists(self._list_keys.shape[1] + MAX_LINE)
        if num_rejects and self.spec.quoting:
            text = np.where(text == HIDDEN, ord("\n"), text)
        return at, count, [_describe(row, self.spec, text) for row in self._rejects[:num_rejects].tolist()]

    def take(self) -> RawColumns:
        """The collected rows, as views that are valid until the next parse."""
        rows, self.rows = self.rows, 0
        self._set_missing(rows)
        lists = list(map(RawList, self._list_ends[:, : rows + 1], self._list_keys, self._list_spans))
        return raw_columns(self.spec, self._labels[:rows], self._values, rows, self._spans[:, :rows], lists)

    def _set_missing(self, rows: int) -> None:
        """Removes the values that null words stand for, in the first ``rows`` rows."""
        for slot, column in enumerate([*self.spec.extra_numbers, *self.spec.dense]):
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


def _header_keys(spec: Spec) -> NDArray[np.uint64]:
    """The keys of the columns' names if a repeated header would be read as a row, as where all columns hold strings;
    otherwise none.
    """
    columns = [column for column in spec.fields if column.role != "ignore"]
    if not spec.header or any((column.role, column.kind) != ("sparse", "string") for column in columns):
        return np.zeros(0, np.uint64)
    places = {name: slot for name, (is_list, slot) in list_slots(spec).items() if not is_list}
    keys = np.zeros(len(places), np.uint64)
    for column in columns:
        if column.name in places:
            name = np.frombuffer(column.name.encode(), np.uint8)
            keys[places[column.name]], _ = parse_string(name, 0, len(name), -1)
    return keys[: sum(column.name in places for column in columns)]


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
