"""Columns of Arrow → columns of raw values, by the rules of ``fields`` for text.

A value is what its decimal text would be: an integer id and its digits are the same id. Whole numbers may come as
floats, which pandas makes of integers with nulls; NaN is missing. A timestamp is seconds since 1970 in a dense column
or a time, and days in a sparse column, both in UTC whatever its zone. A null in a list is a missing value, like an
empty element of text. Functions import pyarrow.compute themselves, because it takes 0.04 s, and text does not need it.
"""

import threading
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import numbers_of
from dlrm_app.kernels.compiled import njit, njit_uncounted
from dlrm_app.logs.fields import (
    ABSENT,
    BAD,
    FIRST_TIME,
    FLOAT32_LIMIT,
    KEY_HEX,
    KEY_STRING,
    LAST_TIME,
    MISSING_KEY,
    PRESENT,
    TIME_FORMAT,
    is_null,
    parse_format,
    parse_hex,
    parse_key,
    parse_number,
    parse_string,
)
from dlrm_app.logs.null_words import null_lists, null_numbers, null_values, set_missing
from dlrm_app.logs.parquet_columns import TEXTS
from dlrm_app.logs.parser import Cursor, Position, column_codes, kind_code
from dlrm_app.logs.raw_columns import RawColumns, RawList, are_missing, raw_columns
from dlrm_app.logs.rejects import (
    EXCERPT_BYTES,
    NEVER_MISSING,
    RejectedLine,
    bad_value,
    rule_name,
    unlike_sizes,
)
from dlrm_app.logs.sources.feeds import InputUnit
from dlrm_app.logs.sources.parquet_units import ParquetUnit
from dlrm_app.logs.spec import (
    ELEMENT_WEIGHTS,
    LogColumn,
    Spec,
    list_slots,
    weight_slots,
)
from dlrm_app.logs.words import hex_of, padded

_DAY = 86_400
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
LARGEST = 2.0**63
_LARGEST_FLOAT = float(np.nextafter(FLOAT32_LIMIT, 0.0))
_LIMITS = {
    "label": (0.0, 1.0),
    "weight": (0.0, _LARGEST_FLOAT),
    ELEMENT_WEIGHTS: (0.0, _LARGEST_FLOAT),
    "integer": (-LARGEST, LARGEST),
    "float": (-_LARGEST_FLOAT, _LARGEST_FLOAT),
    "score": (0.0, 1.0),
}
"""Kind of numbers → the least and the greatest; the others are times."""
_BLANKS, _IN_QUOTES = " \t", "^(?s:'(.*)'|\"(.*)\")$"
_local = threading.local()
_ALL_SET = 0xFF  # eight values that are not null
_LOW_32, _8, _32 = np.uint64(0xFFFFFFFF), np.uint64(8), np.uint64(32)


N = TypeVar("N", bound=np.generic)
KeysOrNumbers = NDArray[np.uint64] | NDArray[np.float64]
"""Keys or numbers."""


class _ReadValues(NamedTuple):
    """R values of a column: numbers or keys, the state of each, and where their texts lie ([R, 2], or [0, 2])."""

    values: KeysOrNumbers
    states: NDArray[np.uint8]
    spans: NDArray[np.int64]


class _Fault(NamedTuple):
    """A column with bad values: True for each row with one. ``sizes``: where these are the numbers of its elements,
    those of each row's weights and of its list, [R].
    """

    column: LogColumn
    is_bad: NDArray[np.bool_]
    sizes: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def reason(self, row: int, value: str) -> str:
        """The reason why ``row``, whose text in the column is ``value``, is left out."""
        if self.sizes is None:
            return bad_value(self.column, value)
        weights, elements = self.sizes
        return unlike_sizes(self.column, int(weights[row]), int(elements[row]))


class _Reading(NamedTuple):
    """How a column is read. ``codes``: those of ``column_codes``; ``content``: the code of its content."""

    column: LogColumn
    codes: NDArray[np.int64]
    content: int


class ArrowCursor(Position):
    """A position in the rows of ``table``, whose columns have the names of ``spec``'s.

    ``keeps_spans``: keeps the positions of strings in ``texts()``.
    """

    def __init__(self, table: pa.Table, spec: Spec, *, keeps_spans: bool = False) -> None:
        super().__init__(spec, keeps_spans)
        codes = column_codes(spec)
        self._columns = [
            _Reading(column, codes[number], kind_code(column))
            for number, column in enumerate(spec.fields)
            if column.role != "ignore" and (column.role != "label" or column.name in table.column_names)
        ]
        self._slots = list_slots(spec)
        self._numbers = [column.name for column in (*spec.beside, *spec.dense)]
        self._num_keys = sum(not is_list for is_list, _ in self._slots.values())
        self.restart(table)

    def restart(self, table: pa.Table) -> None:
        """Moves to the beginning of ``table``, which has the columns of the one before."""
        self._table, self.line, self._first_line = table, 0, 0
        self._distinct: dict[tuple[str, int, int], tuple[pa.Array, _ReadValues]] = {}
        """(column, address, offset) → (Arrow's dictionary, its values), which row groups share, so it is read once."""
        self._texts: dict[int, tuple[NDArray[np.uint8], int]] = {}
        """Address → (bytes of strings, their place in ``texts()``)."""
        self._texts_size = 0

    def texts(self) -> NDArray[np.uint8]:
        """The bytes of all strings read so far, in which spans are positions."""
        return np.concatenate([*(data for data, _ in self._texts.values()), np.zeros(1, np.uint8)])

    def rows(self, capacity: int, until: int | None) -> Iterator[RawColumns]:
        """The rows before number ``until``, up to ``capacity`` at a time, valid until the next request.

        Bad rows are left out.
        """
        stop = len(self._table) if until is None else min(until, len(self._table))
        while self.line < stop:
            start = self._first_line = self.line
            self.line = min(self.line + capacity, stop)
            is_whole = self.line - start == len(self._table)
            yield self._read(start, self._table if is_whole else self._table.slice(start, self.line - start))

    def _read(self, start: int, table: pa.Table) -> RawColumns:
        """The rows of ``table``. ``start``: the number of its first row in the whole table."""
        spec, count, num_numbers = self._spec, len(table), len(self._numbers)
        values, labels = (
            _thread_room("values", np.uint64, num_numbers + self._num_keys, count),
            np.zeros(count),
        )
        states = _thread_room("states", np.uint8, len(self._columns), count)
        spans = np.zeros((self._num_keys, count if self._keeps_spans else 0, 2), np.int64)
        dense = dict(zip(self._numbers, values.view(np.float64), strict=False)) | {spec.label: labels}
        lists: list[RawList] = []
        element_weights: dict[str, RawList] = {}
        chunks = _chunks_of(table)
        for reading, its_states in zip(self._columns, states, strict=True):
            column = reading.column
            stored = chunks[column.name]
            if column.separator is not None:
                its_lists = self._read_lists(
                    stored[0] if len(stored) == 1 else table[column.name].combine_chunks(),
                    reading,
                    its_states,
                )
                if column.role == ELEMENT_WEIGHTS:
                    element_weights[column.name] = its_lists
                else:
                    lists.append(its_lists)
            elif column.role == "sparse":
                slot = self._slots[column.name][1]
                self._convert_all(stored, reading, values[num_numbers + slot], its_states, spans[slot])
            else:
                self._convert_all(stored, reading, dense[column.name], its_states, _NO_SPANS)
                if column.role in NEVER_MISSING:
                    its_states[its_states == ABSENT] = BAD
        lists += element_weights.values()
        faults = self._bad_columns(states)
        faults += self._unlike(lists) if element_weights else ()
        if faults:
            rows = self._reject(start, table, faults)
            values, spans, labels = values[:, rows], spans[:, rows[: spans.shape[1]]], labels[rows]
            lists, count = [each.take(rows) for each in lists], len(rows)
        return raw_columns(spec, (labels == 1).view(np.uint8), values, count, spans, lists)

    def _bad_columns(self, states: NDArray[np.uint8]) -> list[_Fault]:
        """The columns with bad values, of the states [C, R] of all."""
        if (
            states.max(initial=PRESENT) < BAD
        ):  # once for all columns: with few rows, calls take most of the time
            return []
        pairs = zip(self._columns, states == BAD, strict=True)
        return [_Fault(reading.column, is_bad) for reading, is_bad in pairs if is_bad.any()]

    def _unlike(self, lists: Sequence[RawList]) -> Iterator[_Fault]:
        """The columns of element weights with other numbers of elements than their lists have."""
        slots = weight_slots(self._spec)
        for column in self._spec.element_weights:
            weights, elements = (lists[slot] for slot in slots[column.name])
            sizes = np.diff(weights.ends), np.diff(elements.ends) - are_missing(elements)
            if (is_bad := sizes[0] != sizes[1]).any():
                yield _Fault(column, is_bad, sizes)

    def _reject(self, start: int, table: pa.Table, faults: Sequence[_Fault]) -> NDArray[np.int64]:
        """Records every row with a bad value and its first bad column. Returns the numbers of the other rows."""
        keep = ~np.any([fault.is_bad for fault in faults], axis=0)
        for row in np.flatnonzero(~keep).tolist():
            fault = next(fault for fault in faults if fault.is_bad[row])
            values, name = {name: _shown(table[name][row]) for name in table.column_names}, fault.column.name
            excerpt, reason = "\t".join(values.values()), fault.reason(row, values[name])
            self._rejects.append(RejectedLine(None, start + row, reason, name, excerpt[:EXCERPT_BYTES]))
        return np.flatnonzero(keep)

    def _read_lists(self, array: pa.Array, reading: _Reading, states: NDArray[np.uint8]) -> RawList:
        """Reads lists; sets the states of rows with a bad list to BAD, of others to PRESENT."""
        column = reading.column
        ends, elements, is_bare = _as_lists(
            array, column, null_lists(reading.content, self._spec.null_values)
        )
        read = self._values_of(elements, reading)
        keys = read.values.view(np.uint64)
        if column.role == ELEMENT_WEIGHTS:
            keys = (keys.view(np.float64) + 0.0).view(np.uint64)  # -0.0 has the bits of MISSING_KEY
        is_bad = read.states != PRESENT if column.role in NEVER_MISSING else read.states == BAD
        states.fill(PRESENT)
        if is_bad.any():
            num_bad = _ends_of(is_bad)
            states[num_bad[ends[1:]] > num_bad[ends[:-1]]] = BAD
        if is_bare is not None:
            states[is_bare] = BAD
        return RawList(ends, keys, read.spans)

    def _values_of(self, array: pa.Array, reading: _Reading) -> _ReadValues:
        """Reads all values of ``array``."""
        size = len(array)
        values: KeysOrNumbers
        values = np.empty(size, np.uint64) if reading.column.role == "sparse" else np.empty(size, np.float64)
        states = np.empty(size, np.uint8)
        spans = np.zeros((size if self._keeps_spans else 0, 2), np.int64)
        self._convert(array, reading, values, states, spans)
        return _ReadValues(values, states, spans)

    def _convert_all(
        self,
        chunks: Sequence[pa.Array],
        reading: _Reading,
        values: KeysOrNumbers,
        states: NDArray[np.uint8],
        spans: NDArray[np.int64],
    ) -> None:
        """Converts the chunks one after another."""
        start = 0
        for chunk in chunks:
            part = slice(start, start + len(chunk))
            self._convert(chunk, reading, values[part], states[part], spans[part])
            start = part.stop

    def _convert(
        self,
        array: pa.Array,
        reading: _Reading,
        values: KeysOrNumbers,
        states: NDArray[np.uint8],
        spans: NDArray[np.int64],
    ) -> None:
        """Fills ``values`` [R] with numbers or keys, ``states`` [R], and ``spans`` if they have room."""
        column, kind = reading.column, array.type
        missing = MISSING_KEY if column.role == "sparse" else np.nan
        if kind in TEXTS and len(array):
            self._parse(array, reading, values, states, spans)
        elif pa.types.is_null(kind) or not len(array):
            values.fill(missing)
            states.fill(ABSENT)
        elif pa.types.is_dictionary(kind):
            dictionary = array.dictionary
            address = dictionary.buffers()[-1].address if len(dictionary) else 0
            key = column.name, address, dictionary.offset
            if key not in self._distinct:
                self._distinct[key] = dictionary, self._values_of(dictionary, reading)
            indices = array.indices if array.indices.type == pa.int32() else array.indices.cast(pa.int32())
            _spread(*self._distinct[key][1], *_numbers_and_nulls(indices), missing, values, states, spans)
        elif column.kind == "string" or _is_text_of_digits(column, kind):
            self._parse(_digits(array), reading, values, states, spans)
        else:
            numbers = _numeric(array, column)
            parts = *_numbers_and_nulls(numbers), pa.types.is_floating(numbers.type)
            if column.role == "sparse":
                _convert_keys(*parts, values, states)
            else:
                name = rule_name(column)
                limits = _LIMITS.get(name, (FIRST_TIME, LAST_TIME))
                _convert_numbers(*parts, name in ("label", "integer"), limits, values, states)
            words = self._spec.null_values
            if words and len(nulls := null_numbers(reading.content, words, kind, numbers.type)):
                set_missing(parts[0], nulls, missing, values, states)

    def _parse(
        self,
        array: pa.Array,
        reading: _Reading,
        values: KeysOrNumbers,
        states: NDArray[np.uint8],
        spans: NDArray[np.int64],
    ) -> None:
        """Reads strings by the rules for text; their bytes are not copied, but those of long strings in views."""
        column, codes, content = reading
        words, is_sparse = self._spec.null_values, column.role == "sparse"
        texts = _texts_of(array, only_short=column.kind == "hex" and not words)
        (_parse_keys if is_sparse else _parse_numbers)(*texts, codes, content, values, states)
        if words and len(nulls := null_values(content, words)):
            set_missing(values, nulls, MISSING_KEY if is_sparse else np.nan, values, states)
        if len(spans) and column.kind == "string":
            data = texts.data
            place = self._texts.setdefault(data.ctypes.data, (data, self._texts_size))[1]
            self._texts_size = max(self._texts_size, place + len(data))
            _fill_spans(texts.ends, texts.lengths, place, spans)


def _chunks_of(table: pa.Table) -> dict[str, list[pa.Array]]:
    """Column → its chunks."""
    batches = table.to_batches()
    if len(batches) == 1:  # which hands out arrays in less time
        return dict(zip(table.column_names, ([array] for array in batches[0].columns), strict=True))
    return {name: column.chunks for name, column in zip(table.column_names, table.itercolumns(), strict=True)}


_NO_SPANS = np.zeros((0, 2), np.int64)
_NO_LENGTHS = np.zeros(2, np.int32)[:0:2]
"""No lengths, in an array with gaps, as the lengths of views are, so that code is compiled for one type alone."""
_VIEWS, _LARGE = (pa.string_view(), pa.binary_view()), (pa.large_string(), pa.large_binary())
_VIEW, _LENGTH, _INLINE = 16, 4, 12
"""Bytes of a string view, of the length that it begins with, and of a string that lies within it."""


class _Texts(NamedTuple):
    """The bytes of R strings. Either the ends [R + 1] of all, the first one's beginning included, or ``lengths`` [R] of
    strings that lie in views.

    nulls, first: the bits of those that are not null or no bits, and the place of the first bit.
    """

    data: NDArray[np.uint8]
    ends: NDArray[np.int32] | NDArray[np.int64]
    lengths: NDArray[np.int32]
    nulls: NDArray[np.uint8]
    first: int


def _texts_of(array: pa.Array, only_short: bool = False) -> _Texts:
    """The strings of ``array``. ``only_short``: values that do not lie in views are bad, whatever they are."""
    kind = array.type
    if kind in _VIEWS:
        views = np.frombuffer(array.buffers()[1], np.uint8, _VIEW * len(array), _VIEW * array.offset)
        lengths = views.view(np.int32)[:: _VIEW // _LENGTH]
        nulls = _bits(array.buffers()[0], array)
        if only_short or _are_inline(lengths, nulls, array.offset):
            return _Texts(views, np.zeros(0, np.int32), lengths, nulls, array.offset)
        array, kind = array.cast(pa.binary()), pa.binary()
    valid, ends, texts = array.buffers()
    width = np.dtype(np.int64 if kind in _LARGE else np.int32)
    places = np.frombuffer(ends, width, len(array) + 1, width.itemsize * array.offset)
    data = np.frombuffer(texts, np.uint8) if texts is not None and texts.size else np.zeros(1, np.uint8)
    return _Texts(data, places, _NO_LENGTHS, _bits(valid, array), array.offset)


@njit_uncounted
def _extent(ends, lengths, row):  # type: ignore[no-untyped-def]  # compiled
    """The places of the first byte of a string and of the byte after its last."""
    if len(lengths) == 0:
        return np.int64(ends[row]), np.int64(ends[row + 1])
    begin = _VIEW * row + _LENGTH
    return np.int64(begin), np.int64(begin + lengths[row])


@njit(nogil=True, cache=True)
def _are_inline(lengths, nulls, first):  # type: ignore[no-untyped-def]  # compiled
    for row in range(len(lengths)):
        if lengths[row] > _INLINE and not _has_no_value(nulls, first + row):
            return False
    return True


@njit(nogil=True, cache=True)
def _fill_spans(ends, lengths, place, spans):  # type: ignore[no-untyped-def]  # compiled
    for row in range(len(spans)):
        begin, stop = _extent(ends, lengths, row)
        spans[row, 0], spans[row, 1] = begin + place, stop + place


def _shown(value: pa.Scalar) -> str:
    """A value as text. For a time outside the calendar, or a list of bytes that are not text, its type."""
    value = value.value if isinstance(value, pa.DictionaryScalar) else value
    if value is None or not value.is_valid:
        return ""
    if value.type in TEXTS:
        return str(value.as_buffer().to_pybytes().decode("utf-8", "backslashreplace"))
    try:
        return str(value.as_py())
    except (ValueError, OverflowError):
        return str(value.type)


def _thread_room(name: str, kind: type[N], num_columns: int, num_rows: int) -> NDArray[N]:
    """The calling thread's array ``name``. New memory for every unit would take as long as decoding it."""
    size = num_columns * num_rows
    room: NDArray[N] | None = getattr(_local, name, None)
    if room is None or len(room) < size:
        room = np.empty(size, kind)
        setattr(_local, name, room)
    return room[:size].reshape(num_columns, num_rows)


def _ends_of(sizes: NDArray[np.generic]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _numbers_and_nulls(array: pa.Array) -> tuple[NDArray[np.generic], NDArray[np.uint8], int]:
    """Returns (numbers, the bits of those that are not null or no bits, the place of the first bit)."""
    valid, values = array.buffers()
    kind = np.dtype(array.type.to_pandas_dtype())
    numbers = np.frombuffer(values, kind, len(array), array.offset * kind.itemsize)
    return numbers, _bits(valid, array), array.offset


def _bits(valid: pa.Buffer | None, array: pa.Array) -> NDArray[np.uint8]:
    return np.frombuffer(valid, np.uint8) if valid is not None and array.null_count else np.zeros(0, np.uint8)


def _is_text_of_digits(column: LogColumn, kind: pa.DataType) -> bool:
    """True for numbers that are read by their decimal text: decimals, and times such as 20261123."""
    return pa.types.is_decimal(kind) or (column.kind == "iso" and not pa.types.is_temporal(kind))


def _digits(array: pa.Array) -> pa.Array:
    """The texts of numbers; whole floats and decimals have no decimal point."""
    import pyarrow.compute as pc

    if pa.types.is_decimal(array.type):
        whole = pa.decimal256(76, max(array.type.scale, 0))
        texts = (array.cast(whole) if array.type.scale < 0 else array).cast(pa.string())
        if pc.any(pc.match_substring(texts, "E")).as_py():  # Arrow writes 1E-7 for small ones
            plain = (None if text is None else f"{Decimal(text):f}" for text in texts.to_pylist())
            texts = pa.array(plain, pa.string())
        return pc.replace_substring_regex(texts, r"\.0*$|(\.\d*[1-9])0+$", r"\1")
    if not pa.types.is_floating(array.type):
        return array.cast(pa.string())
    if pa.types.is_float16(array.type):  # Arrow has no floor of these
        array = array.cast(pa.float32())
    is_whole = pc.and_(pc.equal(pc.floor(array), array), pc.less(pc.abs(array), LARGEST))
    whole = pc.if_else(is_whole, array, None).cast(pa.int64(), safe=False).cast(pa.string())
    texts = pc.if_else(pc.fill_null(is_whole, False), whole, array.cast(pa.string()))
    return pc.if_else(pc.is_null(array, nan_is_null=True), None, texts)


def _as_lists(
    array: pa.Array, column: LogColumn, words: Sequence[str]
) -> tuple[NDArray[np.int64], pa.Array, NDArray[np.bool_] | None]:
    """Returns (the ends of the lists [R + 1], their elements, True for each text without its brackets).

    Texts are split at the separator of ``column``; empty texts and null words are empty lists. The last is None unless
    these are texts with brackets.
    """
    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if pa.types.is_null(kind):  # no row has a list
        return np.zeros(len(array) + 1, np.int64), pa.nulls(0), None
    is_bare = None
    if kind in TEXTS:
        array, is_bare = _split_texts(array, column, words)
    if pa.types.is_list(array.type) and not array.null_count:
        ends = numbers_of(array.offsets).astype(np.int64)
        return ends - ends[0], array.values.slice(ends[0], ends[-1] - ends[0]), is_bare
    import pyarrow.compute as pc

    # a cast would give list views that were read from Parquet the values of other rows; flatten leaves out whatever
    # null lists hold
    return _ends_of(numbers_of(pc.fill_null(pc.list_value_length(array), 0))), array.flatten(), is_bare


def _split_texts(
    array: pa.Array, column: LogColumn, words: Sequence[str]
) -> tuple[pa.Array, NDArray[np.bool_] | None]:
    """Returns (the lists that texts hold, True for each text without its brackets if the column has such)."""
    import pyarrow.compute as pc

    texts = (array.dictionary_decode() if pa.types.is_dictionary(array.type) else array).cast(
        pa.large_string()
    )
    is_empty = pc.is_in(texts, pa.array(["", *words], pa.large_string())) if words else pc.equal(texts, "")
    texts = pc.if_else(is_empty, None, texts)
    if column.brackets is None:
        return pc.split_pattern(texts, column.separator), None
    texts = pc.utf8_trim(texts, _BLANKS)
    texts = pc.if_else(pc.equal(texts, ""), None, texts)
    inside = pc.utf8_trim(pc.utf8_slice_codeunits(texts, 1, -1), _BLANKS)
    has_both = pc.and_(pc.starts_with(texts, column.brackets[0]), pc.ends_with(texts, column.brackets[1]))
    is_good = pc.and_(has_both, pc.greater(pc.utf8_length(texts), 1))
    inside = pc.if_else(pc.and_(is_good, pc.not_equal(inside, "")), inside, None)
    lists = pc.split_pattern(inside, column.separator)
    elements = pc.replace_substring_regex(pc.utf8_trim(lists.values, _BLANKS), _IN_QUOTES, r"\1\2")
    whole = pa.ListArray.from_arrays(lists.offsets, elements, mask=pc.is_null(lists))
    return whole, ~numbers_of(pc.fill_null(is_good, True).cast(pa.uint8())).astype(np.bool_)


_PLAIN_NUMBERS = (pa.int64(), pa.float64(), pa.int32(), pa.uint64())


def _numeric(array: pa.Array, column: LogColumn) -> pa.Array:
    """Numbers of 32 or 64 bits. Times are days in sparse columns and seconds in others, in UTC; flags 0 and 1."""
    kind, is_sparse = array.type, column.role == "sparse"
    if kind in _PLAIN_NUMBERS and column.kind != "milliseconds":
        return array
    import pyarrow.compute as pc

    if pa.types.is_timestamp(kind) and kind.tz is not None:
        array, kind = (
            array.view(pa.timestamp(kind.unit)),
            pa.timestamp(kind.unit),
        )  # stored in UTC; its days would be local
    if pa.types.is_timestamp(kind) and not is_sparse:
        return pc.divide(array.cast(pa.int64()).cast(pa.float64(), safe=False), float(_TICKS[kind.unit]))
    if pa.types.is_temporal(kind):
        days = array.cast(pa.date32(), safe=False).cast(pa.int32())
        return days if is_sparse else pc.multiply(days.cast(pa.float64()), float(_DAY))
    if column.kind == "milliseconds":
        return pc.divide(array.cast(pa.float64(), safe=False), 1000.0)
    return array.cast(pa.float64() if pa.types.is_floating(kind) else pa.int64())


@njit_uncounted
def _has_no_value(nulls, place):  # type: ignore[no-untyped-def]  # compiled
    return nulls.size > 0 and not (nulls[place >> 3] >> (place & 7)) & 1


@njit(nogil=True, cache=True)
def _convert_numbers(  # type: ignore[no-untyped-def]  # compiled
    numbers, nulls, first, is_float, is_whole, limits, values, states
):
    low, high = limits
    for row in range(len(values)):  # without branches, so it is vectorised
        number = numbers[row]
        value = np.float64(number)
        is_good = (low <= value) & (value <= high) & ((not is_whole) | _is_whole(number, is_float))
        values[row] = value
        states[row] = np.uint8(BAD) * np.uint8(not is_good)
        states[row] = np.uint8(ABSENT) if value != value else states[row]
    _set_absent(nulls, first, np.nan, values, states)


@njit_uncounted
def _set_absent(nulls, first, missing, values, states):  # type: ignore[no-untyped-def]  # compiled
    """Sets the values of nulls; returns the number of bad values that are not null."""
    row, size = 0, len(values) if nulls.size > 0 else 0
    while row < size and (first + row) & 7:
        row = _set_one(nulls, first, missing, values, states, row)
    while row + 8 <= size:
        byte = nulls[(first + row) >> 3]
        if byte != _ALL_SET:
            for bit in range(8):  # without branches, so it is vectorised
                is_null = (byte >> np.uint8(bit)) & np.uint8(1) == 0
                values[row + bit] = missing if is_null else values[row + bit]
                states[row + bit] = np.uint8(ABSENT) if is_null else states[row + bit]
        row += 8
    while row < size:
        row = _set_one(nulls, first, missing, values, states, row)
    num_bad = 0
    for state in states:
        num_bad += state == BAD
    return num_bad


@njit_uncounted
def _set_one(nulls, first, missing, values, states, row):  # type: ignore[no-untyped-def]  # compiled
    """Sets the value of ``row`` if it is null; returns the next row."""
    if _has_no_value(nulls, first + row):
        values[row], states[row] = missing, ABSENT
    return row + 1


@njit(nogil=True, cache=True)
def _convert_keys(numbers, nulls, first, is_float, keys, states):  # type: ignore[no-untyped-def]  # compiled
    for row in range(len(keys)):
        number = numbers[row]
        if _has_no_value(nulls, first + row) or number != number:
            keys[row], states[row] = MISSING_KEY, ABSENT
        else:
            keys[row] = np.uint64(np.int64(number))
            states[row] = PRESENT if _is_whole(number, is_float) else BAD


@njit_uncounted
def _is_whole(number, is_float):  # type: ignore[no-untyped-def]  # compiled
    """True for a whole number within ±(2^63 - 1)."""
    if is_float:
        return abs(number) < LARGEST and np.floor(number) == number
    whole = np.int64(number)
    return np.uint64(whole) != MISSING_KEY and (whole < 0) == (number < 0)


@njit(nogil=True, cache=True)
def _spread(  # type: ignore[no-untyped-def]  # compiled
    distinct, distinct_states, distinct_spans, indices, nulls, first, missing, values, states, spans
):
    if nulls.size == 0:
        for row in range(len(values)):
            values[row] = distinct[np.uint32(indices[row])]
    else:
        for row in range(len(values)):
            is_null = _has_no_value(nulls, first + row)
            values[row] = missing if is_null else distinct[np.uint32(indices[row])]
    others = len(spans)
    for state in distinct_states:
        others |= state
    for row in range(len(values)):
        states[row] = ABSENT if _has_no_value(nulls, first + row) else PRESENT
        if others and states[row] == PRESENT:
            index = indices[row]
            states[row] = distinct_states[index]
            if len(spans) > 0:
                spans[row, 0], spans[row, 1] = distinct_spans[index, 0], distinct_spans[index, 1]


@njit(nogil=True, cache=True)
def _parse_numbers(  # type: ignore[no-untyped-def]  # compiled
    data, ends, lengths, nulls, first, codes, kind, values, states
):
    for row in range(len(values)):
        begin, behind = _extent(ends, lengths, row)
        if _has_no_value(nulls, first + row):
            values[row], states[row] = np.nan, ABSENT
        else:
            if kind == TIME_FORMAT:
                values[row], states[row] = parse_format(data, begin, behind, codes)
            else:
                values[row], states[row] = parse_number(data, begin, behind, kind)
            if states[row] == BAD and is_null(data, begin, behind, codes):
                values[row], states[row] = np.nan, ABSENT


@njit(nogil=True, cache=True)
def _parse_keys(  # type: ignore[no-untyped-def]  # compiled
    data, ends, lengths, nulls, first, codes, kind, keys, states
):
    are_tried = kind == KEY_HEX and len(lengths) > 0
    if are_tried:
        _parse_hex_views(data.view(np.uint64), keys, states)
        if _set_absent(nulls, first, MISSING_KEY, keys, states) == 0:
            return
    for row in range(len(keys)):
        if _has_no_value(nulls, first + row):
            keys[row], states[row] = MISSING_KEY, ABSENT
            continue
        if are_tried and (states[row] == PRESENT or lengths[row] > _INLINE):
            continue
        begin, behind = _extent(ends, lengths, row)
        if kind == KEY_HEX:  # called from here, this and the next one are a quarter faster than by parse_key
            keys[row], states[row] = parse_hex(data, begin, behind)
        elif kind == KEY_STRING:
            keys[row], states[row] = parse_string(data, begin, behind, -1)
        else:
            keys[row], states[row] = parse_key(data, begin, behind, kind, -1)
        if states[row] == BAD and is_null(data, begin, behind, codes):
            keys[row], states[row] = MISSING_KEY, ABSENT


@njit_uncounted
def _parse_hex_views(words, keys, states):  # type: ignore[no-untyped-def]  # compiled
    """Parses hex digits within views: two words each, the length and then the text.

    Without branches, it is vectorised.
    """
    for row in range(len(keys)):
        low, high = words[2 * row], words[2 * row + 1]
        length = np.int64(low & _LOW_32)
        number, is_hex = hex_of(padded((low >> _32) | (high << _32), length))
        is_good = is_hex & (np.uint64(length - 1) < _8)
        keys[row] = number
        states[row] = np.uint8(BAD) * np.uint8(not is_good)


def keys_of(values: pa.Array, kind: str) -> tuple[NDArray[np.uint64], str | None]:
    """Returns (the keys [R] of raw values of a sparse column of ``kind``, the reason why the first bad one is refused).

    Bad values have no key.
    """
    column = LogColumn("value", "sparse", kind)
    cursor = ArrowCursor(pa.table({"value": values}), Spec("values", ",", None, False, (column,)))
    keys = [raw.one_hot[0].copy() for raw in cursor.rows(len(values), None)]
    rejects = cursor.take_rejects()
    return np.concatenate([np.empty(0, np.uint64), *keys]), rejects[0].reason if rejects else None


def open_cursor(unit: InputUnit, spec: Spec, *, keeps_spans: bool = False) -> Cursor | ArrowCursor:
    """A cursor at the beginning of ``unit``, of a file of format ``spec``."""
    if isinstance(unit, ParquetUnit):
        return ArrowCursor(unit.table, spec, keeps_spans=keeps_spans)
    return Cursor(unit, spec, keeps_spans=keeps_spans)
