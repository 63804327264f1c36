"""From raw values to ids, by functions of 64 bits that docs/how-to/preprocessing.md states and that never change.

A value's *key* is its number for hex and integer columns (two's complement), FNV-1a of its bytes for strings.
Its *hash* is ``mix(key)``; among n ids the hash takes ``(hash >> 32) * n >> 32``.
"""

import numpy as np
from numpy.typing import NDArray

from dlrm_app.kernels.compiled import njit

MISSING_KEY = np.uint64(1 << 63)
"""Stands for a missing value. No value has it: integers exclude -2^63, and a string's key steps aside."""

FNV_START, FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_M1, _M2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_32, _33 = np.uint64(32), np.uint64(33)


@njit(nogil=True, cache=True, inline="always")
def mix(key):  # type: ignore[no-untyped-def]  # compiled
    """MurmurHash3's 64-bit finalizer (Appleby, public domain): one-to-one, every bit in moves every bit out."""
    key = np.uint64(key)
    key = (key ^ (key >> _33)) * _M1
    key = (key ^ (key >> _33)) * _M2
    return key ^ (key >> _33)


@njit(nogil=True, cache=True, inline="always")
def reduce_hash(hashed, size):  # type: ignore[no-untyped-def]  # compiled
    """A number in [0, ``size``), ``size`` under 2^32, from a hash, without a division (Lemire 2019)."""
    return ((np.uint64(hashed) >> _32) * np.uint64(size)) >> _32


@njit(nogil=True, cache=True, inline="always")
def next_slot(slot, size):  # type: ignore[no-untyped-def]  # compiled
    """The slot that an open table of ``size`` slots looks at after ``slot``."""
    return slot + 1 if slot + 1 < size else 0


TABLE_FILL = 0.7
TABLE_BYTES = 12
"""Bytes per slot of a vocabulary in memory; ``TABLE_FILL`` of the slots are taken."""


def build_table(
    keys: NDArray[np.uint64], ids: NDArray[np.int32]
) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Keys and ids by slot; -1 is the id of a free slot."""
    size = int(len(keys) / TABLE_FILL) + 8
    table_keys, table_ids = np.zeros(size, np.uint64), np.full(size, -1, np.int32)
    _fill_table(keys, ids, table_keys, table_ids)
    return table_keys, table_ids


@njit(nogil=True, cache=True)
def _fill_table(keys, ids, table_keys, table_ids):  # type: ignore[no-untyped-def]  # compiled
    size = len(table_ids)
    for i in range(len(keys)):
        slot = np.int64(reduce_hash(mix(keys[i]), size))
        while table_ids[slot] >= 0:
            slot = next_slot(slot, size)
        table_keys[slot] = keys[i]
        table_ids[slot] = ids[i]


@njit(nogil=True, cache=True)
def look_up(keys, table_keys, table_ids, ids, missing_id, unknown_id):  # type: ignore[no-untyped-def]  # compiled
    """Writes the id of every key into ``ids``; gives how many keys are missing."""
    count = 0
    size = len(table_ids)
    for i in range(len(keys)):
        key = keys[i]
        if key == MISSING_KEY:
            ids[i] = missing_id
            count += 1
            continue
        slot = np.int64(reduce_hash(mix(key), size))
        while table_ids[slot] >= 0 and table_keys[slot] != key:
            slot = next_slot(slot, size)
        number = table_ids[slot]
        ids[i] = number if number >= 0 else unknown_id
    return count
