"""What stands in Parquet's pages, compiled: packed bits, packed differences, bytes apart, levels of lists.

Values are 32 bits wide, integers and floats alike.
"""

import numpy as np

from dlrm_app.compiled import njit
from dlrm_app.preprocess.write.varints import put_signed, put_varint

_64 = np.uint64(64)
DELTA_BLOCK = 128
_MINI = 32
"""Values that DELTA_BINARY_PACKED takes together, and those of them that share a width."""
_ROOM = 5 + DELTA_BLOCK // _MINI
"""Bytes at most that describe a block."""


@njit(nogil=True, cache=True)
def pack_columns(codes, begins, ends, numbers, numbers_begins, widths, out, starts):  # type: ignore[no-untyped-def]  # compiled
    """For each column c the lowest ``widths[c]`` bits of numbers[code] for every code, in out[starts[c]:] of uint64.

    Codes of column c are codes[begins[c]:ends[c]], numbers those from numbers_begins[c] on. There must be
    n * width // 64 + 1 words for n codes; those that are left become 0. A width of 0: nothing is done.
    """
    for c in range(len(widths)):
        if widths[c] > 0:
            own_numbers = numbers[numbers_begins[c] :]
            pack_bits(codes[begins[c] : ends[c]], own_numbers, widths[c], out[starts[c] : starts[c + 1]])


@njit(nogil=True, cache=True)
def pack_bits(codes, numbers, width, words):  # type: ignore[no-untyped-def]  # compiled
    """The lowest ``width`` bits of ``numbers[code]`` for every code, one behind the other, in ``words`` uint64."""
    width = np.uint64(width)
    word, used, at = np.uint64(0), np.uint64(0), np.uint64(0)
    for i in range(len(codes)):
        number = np.uint64(numbers[codes[i]])
        word |= number << used
        used += width
        if used >= _64:
            words[at] = word
            at += np.uint64(1)
            used -= _64
            word = number >> (width - used)
    words[at] = word
    words[np.int64(at) + 1 :] = 0


@njit(nogil=True, cache=True)
def split_bytes(values, out):  # type: ignore[no-untyped-def]  # compiled
    """All first bytes of ``values``, then all second ones, and so on; out: uint8 [4, n]."""
    for place in range(4):
        shift = np.uint32(8 * place)
        for i in range(len(values)):
            out[place, i] = np.uint8(values[i] >> shift)


@njit(nogil=True, cache=True)
def list_levels(ends, repetition, definition):  # type: ignore[no-untyped-def]  # compiled
    """Levels of the lists that ``ends`` [R + 1] bounds: how many. An empty list has one, of definition 0."""
    at = 0
    for row in range(len(ends) - 1):
        length = ends[row + 1] - ends[row]
        for place in range(max(length, 1)):
            repetition[at] = place > 0
            definition[at] = length > 0
            at += 1
    return at


def deltas_room(count: int) -> int:
    """Bytes that ``pack_deltas`` may need."""
    return 4 * count + (count // DELTA_BLOCK + 1) * (_ROOM + 4 * _MINI) + 20


@njit(nogil=True, cache=True)
def pack_deltas(values, out):  # type: ignore[no-untyped-def]  # compiled
    """``values`` uint32 [n] by DELTA_BINARY_PACKED of 32-bit integers: how many bytes of ``out`` uint8 are used.

    https://parquet.apache.org/docs/file-format/data-pages/encodings/#delta-encoding-delta_binary_packed--5
    """
    at = put_varint(out, 0, DELTA_BLOCK)
    at = put_varint(out, at, DELTA_BLOCK // _MINI)
    at = put_varint(out, at, len(values))
    at = put_signed(out, at, np.int64(np.int32(values[0])) if len(values) > 0 else np.int64(0))
    deltas = np.empty(DELTA_BLOCK, np.int32)
    for start in range(1, len(values), DELTA_BLOCK):
        count = min(DELTA_BLOCK, len(values) - start)
        least = np.int32(0x7FFFFFFF)
        for i in range(count):
            deltas[i] = np.int32(values[start + i] - values[start + i - 1])
            least = min(least, deltas[i])
        at = put_signed(out, at, np.int64(least))
        widths = at
        at += DELTA_BLOCK // _MINI
        for mini in range(DELTA_BLOCK // _MINI):
            first = mini * _MINI
            width, at = _put_mini(deltas[first : min(first + _MINI, count)], least, out, at)
            out[widths + mini] = width
    return at


@njit(nogil=True, cache=True)
def _put_mini(deltas, least, out, at):  # type: ignore[no-untyped-def]  # compiled
    """(bits a value, position behind them); nothing is put where no delta is left."""
    all_bits = np.uint32(0)
    for i in range(len(deltas)):
        all_bits |= _apart(deltas[i], least)
    width = np.uint64(0)
    while all_bits >> np.uint32(width) != 0 and width < 32:
        width += np.uint64(1)
    word, used = np.uint64(0), np.uint64(0)
    for i in range(_MINI if width > 0 else 0):
        if i < len(deltas):
            word |= np.uint64(_apart(deltas[i], least)) << used
        used += width
        if used >= 32:
            for place in range(4):
                out[at + place] = np.uint8(word >> np.uint64(8 * place))
            at += 4
            word >>= np.uint64(32)
            used -= np.uint64(32)
    return width, at


@njit(nogil=True, cache=True, inline="always")
def _apart(delta, least):  # type: ignore[no-untyped-def]  # compiled
    return np.uint32(np.int64(delta) - np.int64(least))
