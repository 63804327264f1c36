"""Counts of values: how often each key occurs in a unit, for vocabularies.

<unit>.counts is an Arrow file with a record batch for each feature: keys and counts in buckets by the highest 8 bits of
the keys' hashes, so that the counts of all units can be added up a few buckets at a time. Within a bucket, keys are in
order.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import array_of, numbers_of
from dlrm_app.kernels.compiled import njit
from dlrm_app.kernels.hashing import mix
from dlrm_app.logs.escapes import byte_of, character_at
from dlrm_app.logs.strings import MISSING_KEY, canonical_texts

NUM_BUCKETS = 256
_NO_SPANS = np.empty((0, 2), np.int64)


class SortedCounts(NamedTuple):
    """Counts of n distinct keys in the order of files.

    ``spans`` [n, 2]: the text of one occurrence of each, or [0, 2] without texts.
    """

    buckets: NDArray[np.uint8]
    keys: NDArray[np.uint64]
    counts: NDArray[np.int64] | NDArray[np.float64]
    spans: NDArray[np.int64]


class KeyCounts:
    """Counts of distinct keys, and the span of text of one occurrence of each.

    They are added up once, by sorting, which takes half the time of a hash table, and less memory.
    """

    def __init__(self) -> None:
        self._parts: list[
            tuple[NDArray[np.uint64], NDArray[np.int64] | NDArray[np.float64], NDArray[np.int64]]
        ] = [(np.empty(0, np.uint64), np.empty(0, np.int64), _NO_SPANS)]

    def add(
        self,
        keys: NDArray[np.uint64],
        counts: NDArray[np.int64] | NDArray[np.float64],
        spans: NDArray[np.int64] = _NO_SPANS,
    ) -> None:
        """Adds ``keys`` [n], which may repeat, ``counts`` [n] times (or of that weight). The arrays are kept.

        ``spans``: [n, 2] or [0, 2].
        """
        self._parts.append((keys, counts, spans))

    def sorted(self) -> SortedCounts:
        """Adds up the counts of each key, without missing keys."""
        keys, counts, spans = map(np.concatenate, zip(*self._parts, strict=True))
        order, buckets = in_buckets(keys)
        order = order[keys[order] != MISSING_KEY]
        firsts = np.flatnonzero(np.diff(keys[order], prepend=MISSING_KEY))  # no key is equal to this
        places = order[firsts]
        totals = np.add.reduceat(counts[order], firsts)
        return SortedCounts(buckets[places], keys[places], totals, spans[places] if len(spans) else spans)


def in_buckets(keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Returns (the order of keys in files: by bucket, then by key; the bucket of each key)."""
    buckets: NDArray[np.uint8] = _buckets_of(keys)
    order = np.argsort(keys)  # in a third of the time of np.lexsort
    return order[np.argsort(buckets[order], kind="stable")], buckets


@njit(nogil=True, cache=True)
def _buckets_of(keys):  # type: ignore[no-untyped-def]  # compiled
    buckets = np.empty(len(keys), np.uint8)
    for i in range(len(keys)):
        buckets[i] = np.uint8(mix(keys[i]) >> np.uint64(56))
    return buckets


def occurrences(codes: NDArray[np.uint16], num_codes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns (the first place of each of ``num_codes`` codes, how often it occurs)."""
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
    path: Path, features: Sequence[SortedCounts], texts: Sequence[pa.Array] | None = None
) -> None:
    """Writes the sorted counts of every feature, and the ``texts`` of their keys if they are given."""
    columns = [
        {"bucket": array_of(each.buckets), "key": array_of(each.keys), "count": array_of(each.counts)}
        for each in features
    ]
    for feature, text in zip(columns, texts or (), strict=False):
        feature["text"] = text
    batches = [pa.RecordBatch.from_pydict(feature) for feature in columns]
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def read_counts(
    path: Path, feature: int, first: int = 0, last: int = NUM_BUCKETS
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The keys and counts of ``feature`` in buckets [first, last), in the order of the file."""
    with pa.memory_map(str(path)) as file:
        batch = pa.ipc.open_file(file).get_batch(feature)
        start, stop = np.searchsorted(numbers_of(batch["bucket"]), [first, last])
        keys, counts = (numbers_of(batch[name])[start:stop].copy() for name in ("key", "count"))
    return keys, counts


def read_texts(path: Path, feature: int) -> tuple[NDArray[np.uint64], pa.Array]:
    """All keys of ``feature`` and their texts."""
    with pa.OSFile(str(path)) as file:
        batch = pa.ipc.open_file(file).get_batch(feature)
        return numbers_of(batch["key"]), batch["text"]


def gather_texts(text: NDArray[np.uint8], spans: NDArray[np.int64], quote: int, is_whole: bool) -> pa.Array:
    """The strings at ``spans`` [E, 2] of ``text``, in the notation that their keys are of.

    If the end of a span is negative, doubled quotes become single; if its beginning is ~ the place, escapes are
    replaced.
    ``is_whole``: of a column with ``whole``.
    """
    ends = np.zeros(len(spans) + 1, np.int32)
    first = np.maximum(spans[:, 0], ~spans[:, 0])
    data = np.empty(int((np.abs(spans[:, 1]) - first).sum()), np.uint8)
    _gather(text, spans, quote, ends, data)
    ends, data = canonical_texts(ends, data[: ends[-1]], is_whole)
    return pa.StringArray.from_buffers(len(spans), pa.py_buffer(ends), pa.py_buffer(data))


@njit(nogil=True, cache=True)
def _gather(text, spans, quote, ends, data):  # type: ignore[no-untyped-def]  # compiled
    at = 0
    for i in range(len(spans)):
        position, stop = spans[i, 0], abs(spans[i, 1])
        if position < 0:
            position, doubled = ~position, quote if spans[i, 1] < 0 else -1
            while position < stop:
                code, size, position = character_at(text, position, stop, doubled)
                for place in range(size):
                    data[at] = byte_of(code, size, place)
                    at += 1
        while position < stop:
            byte = text[position]
            data[at] = byte
            at += 1
            position += 2 if spans[i, 1] < 0 and byte == quote else 1
        ends[i + 1] = at
