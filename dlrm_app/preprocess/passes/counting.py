"""How often each key occurs in a unit of text: a compiled hash table per feature, and the file that keeps the counts.

<unit>.counts is an Arrow file with a record batch per feature: keys and counts in buckets by the highest 8 bits of the
keys' hashes, so that all units' counts can be added up a few buckets at a time; within a bucket in the order of keys.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import array_of, numbers_of
from dlrm_app.kernels.compiled import njit
from dlrm_app.preprocess.units.hashing import MISSING_KEY, mix, next_slot, reduce_hash

NUM_BUCKETS = 256


class Counts:
    """Counts of distinct keys, and the span of text of each key's first occurrence."""

    def __init__(self) -> None:
        self._used = 0
        self._keys, self._counts, self._spans = _empty(1 << 10)

    def add(self, keys: NDArray[np.uint64], spans: NDArray[np.int64] | None = None) -> None:
        """Counts ``keys`` [n], missing ones left out; ``spans`` [n, 2] where wanted, or [0, 2]."""
        spans = np.empty((0, 2), np.int64) if spans is None else spans
        at = 0
        while at < len(keys):
            at, self._used = _count(keys, spans, at, self._keys, self._counts, self._spans, self._used)
            if at < len(keys):
                self._grow()

    def _grow(self) -> None:
        keys, counts, spans = _empty(4 * len(self._keys))
        _move(self._keys, self._counts, self._spans, keys, counts, spans)
        self._keys, self._counts, self._spans = keys, counts, spans

    def sorted(self) -> tuple[dict[str, NDArray[np.generic]], NDArray[np.int64]]:
        """(the columns of the counts' record batch, the spans [n, 2] of its keys)."""
        taken = self._counts > 0
        keys, counts, spans = self._keys[taken], self._counts[taken], self._spans[taken]
        buckets = _buckets_of(keys)
        order = np.lexsort((keys, buckets))
        return {"bucket": buckets[order], "key": keys[order], "count": counts[order]}, spans[order]


def _empty(size: int) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    return np.zeros(size, np.uint64), np.zeros(size, np.int64), np.zeros((size, 2), np.int64)


@njit(nogil=True, cache=True)
def _buckets_of(keys):  # type: ignore[no-untyped-def]  # compiled
    buckets = np.empty(len(keys), np.uint8)
    for i in range(len(keys)):
        buckets[i] = np.uint8(mix(keys[i]) >> np.uint64(56))
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


def write_counts(
    path: Path, features: Sequence[dict[str, NDArray[np.generic]]], texts: Sequence[pa.Array] | None = None
) -> None:
    """Writes the sorted counts of every feature, and the ``texts`` behind their keys where they are wanted."""
    columns = [{name: array_of(values) for name, values in feature.items()} for feature in features]
    for feature, text in zip(columns, texts or (), strict=False):
        feature["text"] = text
    batches = [pa.RecordBatch.from_pydict(feature) for feature in columns]
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def read_counts(
    path: Path, feature: int, first: int = 0, last: int = NUM_BUCKETS
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Keys and counts of ``feature`` in buckets [first, last), in the order of the file."""
    with pa.memory_map(str(path)) as file:
        batch = pa.ipc.open_file(file).get_batch(feature)
        start, stop = np.searchsorted(numbers_of(batch["bucket"]), [first, last])
        keys, counts = (numbers_of(batch[name])[start:stop].copy() for name in ("key", "count"))
    return keys, counts


def read_texts(path: Path, feature: int) -> tuple[NDArray[np.uint64], pa.Array]:
    """All keys of ``feature``, with their texts."""
    with pa.OSFile(str(path)) as file:
        batch = pa.ipc.open_file(file).get_batch(feature)
        return numbers_of(batch["key"]), batch["text"]


def gather_texts(text: NDArray[np.uint8], spans: NDArray[np.int64], quote: int) -> pa.Array:
    """The strings at ``spans`` [E, 2] of ``text``; where a span's end is negative, doubled quotes become single."""
    ends = np.zeros(len(spans) + 1, np.int32)
    data = np.empty(int((np.abs(spans[:, 1]) - spans[:, 0]).sum()), np.uint8)
    _gather(text, spans, quote, ends, data)
    return pa.StringArray.from_buffers(len(spans), pa.py_buffer(ends), pa.py_buffer(data))


@njit(nogil=True, cache=True)
def _gather(text, spans, quote, ends, data):  # type: ignore[no-untyped-def]  # compiled
    at = 0
    for i in range(len(spans)):
        position, stop = spans[i, 0], abs(spans[i, 1])
        while position < stop:
            byte = text[position]
            data[at] = byte
            at += 1
            position += 2 if spans[i, 1] < 0 and byte == quote else 1
        ends[i + 1] = at
