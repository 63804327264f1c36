"""What stands in Parquet's pages, compiled: packed bits, bytes apart, levels of lists.

Values are 32 bits wide, integers and floats alike.
"""

import numpy as np
from numba import njit

_64 = np.uint64(64)


@njit(nogil=True, cache=True)
def pack_bits(codes, numbers, width, words):  # type: ignore[no-untyped-def]  # compiled
    """Puts the lowest ``width`` bits of ``numbers[code]`` for every code one behind the other into ``words`` uint64.

    There must be n * width // 64 + 1 words for n codes; those that are left become 0.
    """
    width = np.uint64(width)
    word, used, at = np.uint64(0), np.uint64(0), 0
    for i in range(len(codes)):
        number = np.uint64(numbers[codes[i]])
        word |= number << used
        used += width
        if used >= _64:
            words[at] = word
            at += 1
            used -= _64
            word = number >> (width - used)
    words[at] = word
    words[at + 1 :] = 0


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
