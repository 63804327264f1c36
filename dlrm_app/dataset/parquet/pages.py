"""What stands in Parquet's pages, compiled: packed bits, split bytes, levels of lists.

Values are 32 bits wide, integers and floats alike.
"""

import numpy as np

from dlrm_app.kernels.compiled import njit

_64 = np.uint64(64)


@njit(nogil=True, cache=True)
def pack_columns(codes, begins, ends, numbers, numbers_begins, widths, out, starts):  # type: ignore[no-untyped-def]  # compiled
    """For each column c the lowest ``widths[c]`` bits of numbers[code] for every code, in out[starts[c]:] of uint64.

    Codes of column c are codes[begins[c]:ends[c]], numbers those from numbers_begins[c] on. There must be
    n * width // 64 + 1 words for n codes; those that are left become 0. A width of 0: nothing is done.
    """
    for c in range(len(widths)):
        if widths[c] > 0:
            table = numbers[numbers_begins[c] :]
            pack_bits(codes[begins[c] : ends[c]], table, widths[c], out[starts[c] : starts[c + 1]])


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
    for byte in range(4):
        shift = np.uint32(8 * byte)
        for i in range(len(values)):
            out[byte, i] = np.uint8(values[i] >> shift)


@njit(nogil=True, cache=True)
def list_levels(ends, repetition, definition):  # type: ignore[no-untyped-def]  # compiled
    """Levels of the lists that ``ends`` [R + 1] bounds: how many. An empty list has one, of definition 0."""
    at = 0
    for row in range(len(ends) - 1):
        length = ends[row + 1] - ends[row]
        for element in range(max(length, 1)):
            repetition[at] = element > 0
            definition[at] = length > 0
            at += 1
    return at
