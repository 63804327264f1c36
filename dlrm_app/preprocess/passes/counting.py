"""How often each key occurs in a unit of text: a hash table per feature, compiled."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlrm_app.kernels.compiled import njit
from dlrm_app.preprocess.units.hashing import MISSING_KEY, mix, next_slot, reduce_hash

NUM_BUCKETS = 256
"""Counts lie in buckets by the highest 8 bits of the keys' hashes, so that they can be added up a part at a time."""


@dataclass(frozen=True)
class SortedCounts:
    """Distinct ``keys`` [n] by bucket, then by key; ``starts`` [NUM_BUCKETS + 1] is where each bucket begins."""

    keys: NDArray[np.uint64]
    counts: NDArray[np.int64]
    spans: NDArray[np.int64]
    starts: NDArray[np.int64]


class Counts:
    """Counts of distinct keys, and the span of text of each key's first occurrence."""

    def __init__(self) -> None:
        self._used = 0
        self._keys, self._counts, self._spans = _empty(1 << 10)

    def add(self, keys: NDArray[np.uint64], spans: NDArray[np.int64]) -> None:
        """Counts ``keys`` [n], missing ones left out; ``spans`` is [n, 2], or [0, 2] where not wanted."""
        at = 0
        while at < len(keys):
            at, self._used = _count(keys, spans, at, self._keys, self._counts, self._spans, self._used)
            if at < len(keys):
                self._grow()

    def _grow(self) -> None:
        keys, counts, spans = _empty(4 * len(self._keys))
        _move(self._keys, self._counts, self._spans, keys, counts, spans)
        self._keys, self._counts, self._spans = keys, counts, spans

    def sorted(self) -> SortedCounts:
        taken = self._counts > 0
        keys, counts, spans = self._keys[taken], self._counts[taken], self._spans[taken]
        buckets = bucket_of(keys)
        order = np.lexsort((keys, buckets))
        starts = np.zeros(NUM_BUCKETS + 1, np.int64)
        np.cumsum(np.bincount(buckets, minlength=NUM_BUCKETS), out=starts[1:])
        return SortedCounts(keys[order], counts[order], spans[order], starts)


def _empty(size: int) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    return np.zeros(size, np.uint64), np.zeros(size, np.int64), np.zeros((size, 2), np.int64)


@njit(nogil=True, cache=True)
def bucket_of(keys):  # type: ignore[no-untyped-def]  # compiled
    """The bucket of each key."""
    buckets = np.empty(len(keys), np.int64)
    for i in range(len(keys)):
        buckets[i] = np.int64(mix(keys[i]) >> np.uint64(56))
    return buckets


@njit(nogil=True, cache=True)
def _count(keys, spans, start, table_keys, table_counts, table_spans, used):  # type: ignore[no-untyped-def]  # compiled
    """Counts from ``start`` until the table is half full: (how far it came, keys in the table)."""
    size = len(table_keys)
    for i in range(start, len(keys)):
        key = keys[i]
        if key == MISSING_KEY:
            continue
        slot = np.int64(reduce_hash(mix(key), size))
        while table_counts[slot] > 0 and table_keys[slot] != key:
            slot = next_slot(slot, size)
        if table_counts[slot] == 0:
            if 2 * used >= size:
                return i, used
            table_keys[slot] = key
            if len(spans) > 0:
                table_spans[slot, 0] = spans[i, 0]
                table_spans[slot, 1] = spans[i, 1]
            used += 1
        table_counts[slot] += 1
    return len(keys), used


@njit(nogil=True, cache=True)
def _move(keys, counts, spans, new_keys, new_counts, new_spans):  # type: ignore[no-untyped-def]  # compiled
    size = len(new_keys)
    for i in range(len(keys)):
        if counts[i] > 0:
            slot = np.int64(reduce_hash(mix(keys[i]), size))
            while new_counts[slot] > 0:
                slot = next_slot(slot, size)
            new_keys[slot] = keys[i]
            new_counts[slot] = counts[i]
            new_spans[slot, 0] = spans[i, 0]
            new_spans[slot, 1] = spans[i, 1]
