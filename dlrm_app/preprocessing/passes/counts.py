"""Counts of values: how often each key occurs in a unit, for vocabularies.

<unit>.counts is an Arrow file with a record batch for each feature: keys and counts in buckets by the highest 8 bits of
the keys' hashes, so that the counts of all units can be added up a few buckets at a time. Within a bucket, keys are in
order.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import array_of, numbers_of
from dlrm_app.kernels.compiled import njit
from dlrm_app.kernels.hashing import mix
from dlrm_app.preprocessing.read.fields import MISSING_KEY

NUM_BUCKETS = 256
_NO_SPANS = np.empty((0, 2), np.int64)


class KeyCounts:
    """Counts of distinct keys, and the span of text of an occurrence of each.

    They are added up once, by sorting: that takes half the time of a hash table, and less memory.
    """

    def __init__(self) -> None:
        self._parts = [(np.empty(0, np.uint64), np.empty(0, np.int64), _NO_SPANS)]

    def add(
        self, keys: NDArray[np.uint64], counts: NDArray[np.int64], spans: NDArray[np.int64] = _NO_SPANS
    ) -> None:
        """Counts ``keys`` [n], which may repeat, ``counts`` [n] times; ``spans`` [n, 2] where wanted, or [0, 2]. Keeps the arrays."""
        self._parts.append((keys, counts, spans))

    def sorted(self) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
        """(the columns of the counts' record batch, the spans [n, 2] of its keys); missing ones are left out."""
        keys, counts, spans = map(np.concatenate, zip(*self._parts, strict=True))
        order, buckets = in_buckets(keys)
        order = order[keys[order] != MISSING_KEY]
        firsts = np.flatnonzero(np.diff(keys[order], prepend=MISSING_KEY))  # which is none of them
        places = order[firsts]
        totals = np.add.reduceat(counts[order], firsts)
        columns = {"bucket": buckets[places], "key": keys[places], "count": totals}
        return columns, spans[places] if len(spans) else spans


def in_buckets(keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """(the order in which counts stand in files: by buckets, within one by key; the bucket of each key)."""
    buckets: NDArray[np.uint8] = _buckets_of(keys)
    order = np.argsort(keys)  # a third of what np.lexsort takes
    return order[np.argsort(buckets[order], kind="stable")], buckets


@njit(nogil=True, cache=True)
def _buckets_of(keys):  # type: ignore[no-untyped-def]  # compiled
    buckets = np.empty(len(keys), np.uint8)
    for i in range(len(keys)):
        buckets[i] = np.uint8(mix(keys[i]) >> np.uint64(56))
    return buckets


def occurrences(codes: NDArray[np.uint16], num_codes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(where each of ``num_codes`` codes occurs first, how often it does)."""
    firsts, counts = np.zeros(num_codes, np.int64), np.zeros(num_codes, np.int64)
    _occurrences(codes, firsts, counts)
    return firsts, counts


@njit(nogil=True, cache=True)
def _occurrences(codes, firsts, counts):  # type: ignore[no-untyped-def]  # compiled
    for i in range(len(codes)):
        code = codes[i]
        if counts[code] == 0:
            firsts[code] = i
        counts[code] += 1


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
