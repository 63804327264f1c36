"""Hash functions and the open-addressing table of 64-bit keys, for compiled functions of all folders.

Datasets depend on ``mix``, ``reduce_hash`` and ``add_byte``, which docs/how-to/preprocessing.md specifies: they never
change.
"""

import numpy as np
from numpy.typing import NDArray

from dlrm_app.kernels.compiled import njit

NO_KEY = np.uint64(1 << 63)
"""The key that no value has: it marks free slots of a table."""
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 / the golden ratio: multiples of it are spread evenly."""

FNV_START, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_M1, _M2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_32, _33 = np.uint64(32), np.uint64(33)


@njit(nogil=True, cache=True, inline="always")
def mix(key):  # type: ignore[no-untyped-def]  # compiled
    """MurmurHash3's 64-bit finalizer (Appleby, public domain): one-to-one; every input bit affects every output bit."""
    key = np.uint64(key)
    key = (key ^ (key >> _33)) * _M1
    key = (key ^ (key >> _33)) * _M2
    return key ^ (key >> _33)


@njit(nogil=True, cache=True, inline="always")
def reduce_hash(hashed, size):  # type: ignore[no-untyped-def]  # compiled
    """Reduces a hash to a number in [0, ``size``), without a division (Lemire 2019); ``size`` is below 2^32."""
    return ((np.uint64(hashed) >> _32) * np.uint64(size)) >> _32


@njit(nogil=True, cache=True, inline="always")
def add_byte(hashed, byte):  # type: ignore[no-untyped-def]  # compiled
    """The FNV-1a hash of some bytes and another one; it begins with FNV_START."""
    return (hashed ^ np.uint64(byte)) * _FNV_PRIME


@njit(nogil=True, cache=True, inline="always")
def as_key(hashed):  # type: ignore[no-untyped-def]  # compiled
    """A hash as a key: NO_KEY becomes the next number."""
    return hashed + np.uint64(1) if hashed == NO_KEY else hashed


def empty_slots(size: int) -> NDArray[np.uint64]:
    """A table of ``size`` free slots. Some must stay free."""
    return np.full(size, NO_KEY)


@njit(nogil=True, cache=True, inline="always")
def find_slot(key, slots):  # type: ignore[no-untyped-def]  # compiled
    """The slot that holds ``key``; if there is none, the free slot where it belongs. Probing is linear."""
    size = len(slots)
    slot = np.int64(reduce_hash(mix(key), size))
    while slots[slot] != NO_KEY and slots[slot] != key:
        slot += 1
        if slot == size:
            slot = np.int64(0)
    return slot
