"""What stands in Parquet's pages, compiled: dictionaries, packed bits, bytes apart, levels of lists.

Values are 32 bits wide, integers and floats alike.
"""

import numpy as np
from numba import njit

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / the golden ratio: multiplied by it, neighbours lie far apart
_0, _1, _32, _64 = np.uint64(0), np.uint64(1), np.uint64(32), np.uint64(64)


@njit(nogil=True, cache=True)
def index_values(values, limit, table, table_bits, codes, dictionary):  # type: ignore[no-untyped-def]  # compiled
    """Numbers ``values`` by their first occurrences: how many are distinct, or -1 as soon as they exceed ``limit``.

    ``table`` uint64 [2 ** table_bits], more than ``limit``, is for its use; ``codes`` and ``dictionary`` are filled.
    """
    table[:] = 0
    mask = len(table) - 1
    shift = _64 - np.uint64(table_bits)
    count = 0
    for i in range(len(values)):
        value = np.uint64(values[i])
        place = np.int64((value * _SPREAD) >> shift)
        # an entry is a value and, in its lower half, the value's number from 1; 0 is a free place
        entry = table[place]
        while entry != _0 and (entry >> _32) != value:
            place = (place + 1) & mask
            entry = table[place]
        if entry == _0:
            if count == limit:
                return -1
            dictionary[count] = values[i]
            count += 1
            entry = (value << _32) | np.uint64(count)
            table[place] = entry
        codes[i] = np.uint32(entry - _1)
    return count


@njit(nogil=True, cache=True)
def pack_bits(codes, width, words):  # type: ignore[no-untyped-def]  # compiled
    """Puts the lowest ``width`` bits of every code one behind the other into ``words`` uint64 [n * width // 64 + 1]."""
    width = np.uint64(width)
    word, used, at = np.uint64(0), np.uint64(0), 0
    for i in range(len(codes)):
        code = np.uint64(codes[i])
        word |= code << used
        used += width
        if used >= _64:
            words[at] = word
            at += 1
            used -= _64
            word = code >> (width - used)
    words[at] = word


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
