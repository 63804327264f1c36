"""Rows as lines of a Criteo file: label, 13 integers, 26 ids of 8 hex digits, tabs between, empty where missing."""

import numpy as np
from numpy.typing import NDArray

from dlrm_app.kernels.compiled import njit
from dlrm_app.synthetic.draw import MISSING, MISSING_VALUE
from dlrm_app.synthetic.shape import NUM_DENSE, NUM_SPARSE

_MAX_LINE = 1 + NUM_DENSE * 12 + NUM_SPARSE * 9 + 1
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_TAB, _NEWLINE, _ZERO, _MINUS = ord("\t"), ord("\n"), ord("0"), ord("-")


def format_rows(
    labels: NDArray[np.uint8],
    values: NDArray[np.int64],
    ranks: NDArray[np.int64],
    column_keys: NDArray[np.uint32],
) -> bytes:
    """The lines of rows with ``labels`` [B], dense ``values`` [B, N] and ``ranks`` of ids [B, F].

    A rank becomes an id by a one-to-one mixing of 32 bits, different in each column (``column_keys`` [F]).
    """
    buffer = np.empty(len(labels) * _MAX_LINE, np.uint8)
    length = _format(buffer, labels, values, ranks, column_keys)
    return buffer[:length].tobytes()


@njit(nogil=True, cache=True)
def _format(buffer, labels, values, ranks, column_keys):  # type: ignore[no-untyped-def]  # compiled
    at = 0
    for i in range(len(labels)):
        buffer[at] = _ZERO + labels[i]
        at += 1
        for c in range(NUM_DENSE):
            buffer[at] = _TAB
            at += 1
            if values[i, c] != MISSING_VALUE:
                at = _write_integer(buffer, at, values[i, c])
        for c in range(NUM_SPARSE):
            buffer[at] = _TAB
            at += 1
            if ranks[i, c] != MISSING:
                at = _write_hex(buffer, at, _mixed(np.uint32(ranks[i, c]) + column_keys[c]))
        buffer[at] = _NEWLINE
        at += 1
    return at


@njit(nogil=True, cache=True, inline="always")
def _write_integer(buffer, at, value):  # type: ignore[no-untyped-def]  # compiled
    if value < 0:
        buffer[at] = _MINUS
        at += 1
        value = -value
    num_digits = 1
    bound = 10
    while value >= bound:
        num_digits += 1
        bound *= 10
    for digit in range(at + num_digits - 1, at - 1, -1):
        buffer[digit] = _ZERO + value % 10
        value //= 10
    return at + num_digits


@njit(nogil=True, cache=True, inline="always")
def _write_hex(buffer, at, value):  # type: ignore[no-untyped-def]  # compiled
    for digit in range(8):
        buffer[at + digit] = _HEX[(value >> np.uint32(28 - 4 * digit)) & np.uint32(15)]
    return at + 8


@njit(nogil=True, cache=True, inline="always")
def _mixed(x):  # type: ignore[no-untyped-def]  # compiled
    """MurmurHash3's finalizer, one-to-one on 32 bits (Appleby, public domain)."""
    x = np.uint32(x)
    x = np.uint32(x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = np.uint32(x)
    x = np.uint32(x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    x = np.uint32(x)
    return np.uint32(x ^ (x >> np.uint32(16)))
