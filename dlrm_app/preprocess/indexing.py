"""The distinct values of a column, numbered: what a row group's values have in common is then done once for all.

Encoding, counting and writing all work on distinct values where there are few; see docs/preprocessing.md.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

_OCCURRENCES = 4
_MAX_DISTINCT = (1 << 16) - 1
"""Numbering pays where a value occurs so many times on average, and up to so many distinct ones."""

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / the golden ratio: multiplied by it, neighbours lie far apart
_64 = np.uint64(64)


class Index(NamedTuple):
    """``distinct[codes]`` are the values; distinct ones stand in the order of their first occurrences."""

    codes: NDArray[np.uint16]
    distinct: NDArray[Any]


class Indexer:
    """Numbers the values of one column, row group by row group.

    Once a row group has too many distinct ones it does not try again, so what it does depends on the values alone.
    """

    def __init__(self) -> None:
        self._has_given_up = False

    def index(self, values: NDArray[Any]) -> Index | None:
        """The distinct ones of ``values``, integers of 32 or 64 bits; None if numbering them does not pay."""
        if self._has_given_up or not len(values):
            return None
        found = index_values(values, min(len(values) // _OCCURRENCES, _MAX_DISTINCT))
        self._has_given_up = found is None
        return found


def index_values(values: NDArray[Any], limit: int) -> Index | None:
    """None if there are more than ``limit`` distinct ones; ``limit`` is less than 2^16."""
    bits = max(limit, 1).bit_length() + 1
    codes, distinct = np.empty(len(values), np.uint16), np.empty(limit, values.dtype)
    count = int(_number(values, np.zeros(1 << bits, np.uint16), bits, codes, distinct))
    return None if count < 0 else Index(codes, distinct[:count])


@njit(nogil=True, cache=True)
def _number(values, table, table_bits, codes, distinct):  # type: ignore[no-untyped-def]  # compiled
    """How many distinct values there are, or -1 once they do not fit; ``table`` holds numbers from 1, 0 where free."""
    mask = len(table) - 1
    shift = _64 - np.uint64(table_bits)
    count = 0
    for i in range(len(values)):
        value = values[i]
        place = np.int64((np.uint64(value) * _SPREAD) >> shift)
        number = np.int64(table[place])
        while number != 0 and distinct[number - 1] != value:
            place = (place + 1) & mask
            number = np.int64(table[place])
        if number == 0:
            if count == len(distinct):
                return -1
            distinct[count] = value
            count += 1
            number = np.int64(count)
            table[place] = number
        codes[i] = number - 1
    return count


@njit(nogil=True, cache=True)
def count_code(codes, code):  # type: ignore[no-untyped-def]  # compiled
    """How often ``code`` occurs."""
    wanted, count = np.uint16(code), 0
    for i in range(len(codes)):
        count += codes[i] == wanted
    return count
