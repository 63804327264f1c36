"""The text of generated rows: lines in Criteo's format, the ids of ranks, and lists."""

import numpy as np
from numpy.typing import NDArray

from dlrm_app.kernels.compiled import njit
from dlrm_app.tools.synthetic.distribution import MISSING, MISSING_VALUE, NUM_DENSE, NUM_SPARSE

_MAX_LINE = 1 + NUM_DENSE * 12 + NUM_SPARSE * 9 + 1


_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


_SHIFTS = np.arange(28, -4, -4, dtype=np.uint32)


_TAB, _NEWLINE, _ZERO, _MINUS = b"\t\n0-"


def format_rows(
    labels: NDArray[np.uint8],
    values: NDArray[np.int64],
    ranks: NDArray[np.int64],
    column_keys: NDArray[np.uint32],
) -> bytes:
    """The lines of rows with ``labels`` [B], dense ``values`` [B, N] and ``ranks`` of ids [B, F].

    Ids are hashes of ranks, different in each column (``column_keys`` [F]).
    """
    buffer = np.empty(len(labels) * _MAX_LINE, np.uint8)
    length = _format(buffer, labels, values, ranks, hash_ids(ranks, column_keys))
    return buffer[:length].tobytes()


def hash_ids(ranks: NDArray[np.int64], column_keys: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The ids of ``ranks`` [B, F]: MurmurHash3's finalizer, one-to-one on 32 bits (Appleby, public domain)."""
    ids = ranks.astype(np.uint32) + column_keys
    ids = (ids ^ (ids >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    ids = (ids ^ (ids >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return ids ^ (ids >> np.uint32(16))


def join_ids(ids: NDArray[np.uint32], lengths: NDArray[np.integer]) -> list[bytes]:
    """The texts of lists: the first ``lengths`` [B] of each row's ``ids`` [B, M]."""
    return _join((ids[..., None] >> _SHIFTS) & np.uint32(15), lengths)


def join_digits(digits: NDArray[np.integer], lengths: NDArray[np.integer]) -> list[bytes]:
    """The texts of lists: the first ``lengths`` [B] of each row's numbers [B, M], which are below 16."""
    return _join(digits[..., None].astype(np.uint8), lengths)


def _join(digits: NDArray[np.integer], lengths: NDArray[np.integer]) -> list[bytes]:
    """The texts of lists of hexadecimal ``digits`` [B, M, W]: the first ``lengths`` [B] elements of each row."""
    num_rows, longest, width = digits.shape
    text = np.full((num_rows, longest, width + 1), ord("|"), np.uint8)
    text[..., :width] = _HEX[digits]
    whole = text.tobytes()
    starts = range(0, len(whole), longest * (width + 1))
    ends = np.maximum(lengths * (width + 1) - 1, 0).tolist()
    return [whole[start : start + end] for start, end in zip(starts, ends, strict=True)]


@njit(nogil=True, cache=True)
def _format(buffer, labels, values, ranks, ids):  # type: ignore[no-untyped-def]  # compiled
    at = 0
    for i in range(len(labels)):
        buffer[at] = _ZERO + labels[i]
        at += 1
        for c in range(NUM_DENSE):
            buffer[at] = _TAB
            at += 1
            value = values[i, c]
            if value == MISSING_VALUE:
                continue
            if value < 0:
                buffer[at] = _MINUS
                at += 1
                value = -value
            num_digits = 1
            while value >= 10**num_digits:
                num_digits += 1
            at += num_digits
            for place in range(1, num_digits + 1):
                buffer[at - place] = _ZERO + value % 10
                value //= 10
        for c in range(NUM_SPARSE):
            buffer[at] = _TAB
            at += 1
            if ranks[i, c] != MISSING:
                for digit in range(8):
                    buffer[at + digit] = _HEX[(ids[i, c] >> np.uint32(28 - 4 * digit)) & np.uint32(15)]
                at += 8
        buffer[at] = _NEWLINE
        at += 1
    return at
