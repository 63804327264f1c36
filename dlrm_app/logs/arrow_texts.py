"""Strings of an Arrow array → keys or numbers, by the rules of ``fields`` for text. The bytes are not copied."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.kernels.compiled import njit, njit_uncounted
from dlrm_app.logs.fields import (
    KEY_HEX,
    KEY_STRING,
    TIME_FORMAT,
    is_null,
    parse_format,
    parse_hex,
    parse_key,
    parse_number,
)
from dlrm_app.logs.parquet_columns import TEXTS
from dlrm_app.logs.rejects import BEYOND_YEARS
from dlrm_app.logs.strings import ABSENT, BAD, MISSING_KEY, PRESENT, parse_string
from dlrm_app.logs.words import hex_of, padded

_ALL_SET = 0xFF  # eight values that are not null
_LOW_32, _8, _32 = np.uint64(0xFFFFFFFF), np.uint64(8), np.uint64(32)


_NO_LENGTHS = np.zeros(2, np.int32)[:0:2]
"""Stands for no lengths. It has gaps like the lengths of views, so that code is compiled for one type alone."""


_VIEWS, _LARGE = (pa.string_view(), pa.binary_view()), (pa.large_string(), pa.large_binary())
_VIEW, _LENGTH, _INLINE = 16, 4, 12
"""Bytes of a string view, of the length that it begins with, and of a string that lies within it."""


class Texts(NamedTuple):
    """The bytes of R strings. Either the ends [R + 1] of all, the first one's beginning included, or ``lengths`` [R] of
    strings that lie in views.

    nulls, first: the bits of those that are not null or no bits, and the place of the first bit.
    """

    data: NDArray[np.uint8]
    ends: NDArray[np.int32] | NDArray[np.int64]
    lengths: NDArray[np.int32]
    nulls: NDArray[np.uint8]
    first: int


def texts_of(array: pa.Array, only_short: bool = False) -> Texts:
    """The strings of ``array``. ``only_short``: values that do not lie in views are bad, whatever they are."""
    kind = array.type
    if kind in _VIEWS:
        views = np.frombuffer(array.buffers()[1], np.uint8, _VIEW * len(array), _VIEW * array.offset)
        lengths = views.view(np.int32)[:: _VIEW // _LENGTH]
        nulls = bits_of(array.buffers()[0], array)
        if only_short or _are_inline(lengths, nulls, array.offset):
            return Texts(views, np.zeros(0, np.int32), lengths, nulls, array.offset)
        array, kind = array.cast(pa.binary()), pa.binary()
    valid, ends, texts = array.buffers()
    width = np.dtype(np.int64 if kind in _LARGE else np.int32)
    places = np.frombuffer(ends, width, len(array) + 1, width.itemsize * array.offset)
    data = np.frombuffer(texts, np.uint8) if texts is not None and texts.size else np.zeros(1, np.uint8)
    return Texts(data, places, _NO_LENGTHS, bits_of(valid, array), array.offset)


@njit_uncounted
def _extent(ends, lengths, row):  # type: ignore[no-untyped-def]  # compiled
    if len(lengths) == 0:
        return np.int64(ends[row]), np.int64(ends[row + 1])
    begin = _VIEW * row + _LENGTH
    return np.int64(begin), np.int64(begin + lengths[row])


@njit(nogil=True, cache=True)
def _are_inline(lengths, nulls, first):  # type: ignore[no-untyped-def]  # compiled
    for row in range(len(lengths)):
        if lengths[row] > _INLINE and not has_no_value(nulls, first + row):
            return False
    return True


@njit(nogil=True, cache=True)
def fill_spans(ends, lengths, place, spans):  # type: ignore[no-untyped-def]  # compiled
    for row in range(len(spans)):
        begin, stop = _extent(ends, lengths, row)
        spans[row, 0], spans[row, 1] = begin + place, stop + place


def bits_of(valid: pa.Buffer | None, array: pa.Array) -> NDArray[np.uint8]:
    return np.frombuffer(valid, np.uint8) if valid is not None and array.null_count else np.zeros(0, np.uint8)


@njit_uncounted
def has_no_value(nulls, place):  # type: ignore[no-untyped-def]  # compiled
    return nulls.size > 0 and not (nulls[place >> 3] >> (place & 7)) & 1


@njit_uncounted
def set_absent(nulls, first, missing, values, states):  # type: ignore[no-untyped-def]  # compiled
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
    if has_no_value(nulls, first + row):
        values[row], states[row] = missing, ABSENT
    return row + 1


@njit(nogil=True, cache=True)
def parse_numbers(  # type: ignore[no-untyped-def]  # compiled
    data, ends, lengths, nulls, first, codes, kind, values, states
):
    for row in range(len(values)):
        begin, behind = _extent(ends, lengths, row)
        if has_no_value(nulls, first + row):
            values[row], states[row] = np.nan, ABSENT
        else:
            if kind == TIME_FORMAT:
                values[row], states[row] = parse_format(data, begin, behind, codes)
            else:
                values[row], states[row] = parse_number(data, begin, behind, kind)
            if states[row] == BAD and is_null(data, begin, behind, codes):
                values[row], states[row] = np.nan, ABSENT


@njit(nogil=True, cache=True)
def parse_keys(  # type: ignore[no-untyped-def]  # compiled
    data, ends, lengths, nulls, first, codes, kind, keys, states
):
    are_tried = kind == KEY_HEX and len(lengths) > 0
    if are_tried:
        _parse_hex_views(data.view(np.uint64), keys, states)
        if set_absent(nulls, first, MISSING_KEY, keys, states) == 0:
            return
    for row in range(len(keys)):
        if has_no_value(nulls, first + row):
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


def shown_text(value: pa.Scalar) -> str:
    """A value as text. For a list of bytes that are not text, its type."""
    value = value.value if isinstance(value, pa.DictionaryScalar) else value
    if value is None or not value.is_valid:
        return ""
    if value.type in TEXTS:
        return str(value.as_buffer().to_pybytes().decode("utf-8", "backslashreplace"))
    try:
        return str(value.as_py())
    except (ValueError, OverflowError):
        return BEYOND_YEARS if pa.types.is_temporal(value.type) else str(value.type)
