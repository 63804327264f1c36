"""From raw values to ids, by functions of 64 bits that docs/how-to/preprocessing.md states and that never change.

A value's *key* is its number for hex and integer columns (two's complement), FNV-1a of its bytes for strings.
Its *hash* is ``mix(key)``; among n ids the hash takes ``(hash >> 32) * n >> 32``.
"""

import numpy as np
from numba import njit

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
