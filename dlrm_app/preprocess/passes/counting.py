"""Counts of values: how often each key occurs in a unit, for vocabularies, and how many distinct keys there are, for hashes.

<unit>.counts is an Arrow file with a record batch per feature: keys and counts in buckets by the highest 8 bits of the
keys' hashes, so that all units' counts can be added up a few buckets at a time; within a bucket in the order of keys.

<unit>.sketch holds the distinct keys of a feature while they are few, and registers of HyperLogLog beyond that. A unit
keeps up to UNIT_KEYS keys (TOTAL_KEYS if it is all of its source, so that small inputs are counted exactly), and all
units together TOTAL_KEYS. Past either, the feature has registers only: 2^14 of them, a relative standard error of 0.8%
(Flajolet et al. 2007, without large-range correction: 64-bit hashes need none).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import array_of, numbers_of
from dlrm_app.dataset.dictionary import Columns
from dlrm_app.dataset.manifest import SparseColumn
from dlrm_app.kernels.compiled import njit
from dlrm_app.preprocess.encode.sparse import hash_ids, mix, next_slot, reduce_hash
from dlrm_app.preprocess.read.fields import MISSING_KEY
from dlrm_app.preprocess.read.plain_lines import trailing_zeros

NUM_BUCKETS = 256


class Counts:
    """Counts of distinct keys, and the span of text of each key's first occurrence."""

    def __init__(self) -> None:
        self._table, self._used = _empty(1 << 10), 0

    def add(self, keys: NDArray[np.uint64], spans: NDArray[np.int64] | None = None, weight: int = 1) -> None:
        """Counts ``keys`` [n], missing ones left out, each ``weight`` times; ``spans`` [n, 2] where wanted, or [0, 2]."""
        spans = np.empty((0, 2), np.int64) if spans is None else spans
        self._add(keys, np.full(len(keys), weight, np.int64), spans)

    def _add(self, keys: NDArray[np.uint64], counts: NDArray[np.int64], spans: NDArray[np.int64]) -> None:
        at = 0
        while at < len(keys):
            at, self._used = _count(keys, counts, spans, at, *self._table, self._used)
            if at < len(keys):
                old = self._entries()
                self._table, self._used = _empty(4 * len(self._table[0])), 0
                self._add(*old)

    def _entries(self) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
        keys, counts, spans = self._table
        taken = counts > 0
        return keys[taken], counts[taken] - 1, spans[taken]

    def sorted(self) -> tuple[dict[str, NDArray[np.generic]], NDArray[np.int64]]:
        """(the columns of the counts' record batch, the spans [n, 2] of its keys)."""
        keys, counts, spans = self._entries()
        order, buckets = in_buckets(keys)
        return {"bucket": buckets[order], "key": keys[order], "count": counts[order]}, spans[order]


def _empty(size: int) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    return np.zeros(size, np.uint64), np.zeros(size, np.int64), np.zeros((size, 2), np.int64)


def in_buckets(keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """(the order in which counts stand in files: by buckets, within one by key; the bucket of each key)."""
    buckets: NDArray[np.uint8] = _buckets_of(keys)
    return np.lexsort((keys, buckets)), buckets


@njit(nogil=True, cache=True)
def _buckets_of(keys):  # type: ignore[no-untyped-def]  # compiled
    buckets = np.empty(len(keys), np.uint8)
    for i in range(len(keys)):
        buckets[i] = np.uint8(mix(keys[i]) >> np.uint64(56))
    return buckets


@njit(nogil=True, cache=True)
def _count(keys, counts, spans, start, table_keys, table_counts, table_spans, used):  # type: ignore[no-untyped-def]  # compiled
    """Counts from ``start`` until the table is half full: (how far it came, keys in the table).

    The counts of the table are higher by one, for 0 is a free slot.
    """
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
            table_counts[slot] = 1
            if len(spans) > 0:
                table_spans[slot, 0] = spans[i, 0]
                table_spans[slot, 1] = spans[i, 1]
            used += 1
        table_counts[slot] += counts[i]
    return len(keys), used


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


UNIT_KEYS = 1 << 12
TOTAL_KEYS = 1 << 17
_NUM_REGISTERS = 1 << 14
_GIVEN_UP = -1
_0, _1, _14, _INDEX, _LAST = (np.uint64(value) for value in (0, 1, 14, _NUM_REGISTERS - 1, 1 << 50))


class Sketches:
    """The distinct keys of features, ``is_exact`` for one while they are at most ``max_keys``."""

    def __init__(self, num_features: int, max_keys: int) -> None:
        self.registers = np.zeros((num_features, _NUM_REGISTERS), np.uint8)
        self._keys = np.empty((num_features, max_keys), np.uint64)
        self._tables = np.zeros((num_features, 2 * max_keys), np.uint32)
        """By their hashes the numbers of the keys, from 1 on; 0 where it is free."""
        self._used = np.zeros(num_features, np.int64)

    @property
    def _state(self) -> tuple[NDArray[np.generic], ...]:
        return self._keys, self._tables, self._used, self.registers

    def add(self, keys: Columns, features: Sequence[int]) -> None:
        """Adds ``keys`` [C] of ``features`` [C]; missing ones are left out."""
        _add(keys.values, keys.begins, keys.ends, np.array(features, np.int64), self._state)

    def is_exact(self, feature: int) -> bool:
        """True if the keys of ``feature`` are all kept."""
        return bool(self._used[feature] >= 0)

    def keep(self, max_keys: int) -> None:
        """Keeps only registers of features with more than ``max_keys`` keys."""
        self._used[self._used > max_keys] = _GIVEN_UP

    def keys(self, feature: int) -> NDArray[np.uint64]:
        """The keys seen, in the order of their first occurrences; none if the feature is not exact."""
        return self._keys[feature, : max(self._used[feature], 0)]

    def write(self, path: Path) -> None:
        """Writes int64 [F], the number of keys (-1: registers instead), then each feature's keys or registers."""
        features = range(len(self._used))
        parts = [self.keys(f) if self.is_exact(f) else self.registers[f] for f in features]
        with path.open("wb") as file:
            self._used.tofile(file)
            for part in parts:
                part.tofile(file)

    def join(self, path: Path) -> None:
        """Adds what other sketches have written."""
        words = np.fromfile(path, np.uint64)
        _join(words, self._state)

    def distinct(self, feature: int) -> int:
        """Number of distinct keys added; an estimate if not exact."""
        if self.is_exact(feature):
            return int(self._used[feature])
        registers = self.registers[feature]
        count = len(registers)
        raw = 0.7213 / (1 + 1.079 / count) * count * count / np.exp2(-registers.astype(np.float64)).sum()
        empty = int((registers == 0).sum())
        return round(count * math.log(count / empty) if raw <= 2.5 * count and empty else raw)

    def collisions(self, feature: int, num_embeddings: int) -> int:
        """Number of distinct values that share their hashed id with another one; the expected one if not exact."""
        size, distinct = num_embeddings - 1, self.distinct(feature)
        if not self.is_exact(feature):
            return (
                round(-distinct * math.expm1((distinct - 1) * math.log1p(-1 / size)))
                if size > 1
                else distinct
            )
        _, counts = np.unique(hash_ids(self.keys(feature), num_embeddings), return_counts=True)
        return int(counts[counts > 1].sum())


def count_distinct(files: Sequence[Path], columns: Sequence[SparseColumn]) -> list[SparseColumn]:
    """``columns`` with their numbers of distinct values and collisions, by the sketches that the units left; some know theirs."""
    totals = Sketches(len(columns), TOTAL_KEYS)
    for path in files:
        totals.join(path)
    return [
        column
        if column.distinct is not None
        else replace(
            column,
            distinct=totals.distinct(feature),
            collisions=totals.collisions(feature, column.num_embeddings)
            if column.encoding["kind"] == "hash"
            else None,
            estimated=not totals.is_exact(feature),
        )
        for feature, column in enumerate(columns)
    ]


@njit(nogil=True, cache=True)
def _add(keys, begins, ends, features, state):  # type: ignore[no-untyped-def]  # compiled
    for c in range(len(features)):
        _see(keys, begins[c], ends[c], features[c], state)


@njit(nogil=True, cache=True)
def _join(words, state):  # type: ignore[no-untyped-def]  # compiled
    _, _, used, registers = state
    at = np.int64(len(used))
    for feature in range(len(used)):
        size = np.int64(words[feature])
        if size >= 0:
            _see(words, at, at + size, feature, state)
            at += size
            continue
        used[feature] = _GIVEN_UP
        theirs = words[at : at + _NUM_REGISTERS // 8].view(np.uint8)
        for register in range(_NUM_REGISTERS):
            registers[feature, register] = max(registers[feature, register], theirs[register])
        at += _NUM_REGISTERS // 8


@njit(nogil=True, cache=True)
def _see(keys, at, end, feature, state):  # type: ignore[no-untyped-def]  # compiled
    """Adds keys[at:end] of ``feature``."""
    seen, tables, used, registers = state
    if used[feature] >= 0:
        at, used[feature] = _insert(
            keys, at, end, seen[feature], tables[feature], used[feature], registers[feature]
        )
    while at < end:
        if keys[at] != MISSING_KEY:
            _raise(mix(keys[at]), registers[feature])
        at += 1


@njit(nogil=True, cache=True)
def _insert(keys, at, end, seen, table, used, registers):  # type: ignore[no-untyped-def]  # compiled
    """Adds keys[at:end] until there is no room: (how far it came, keys seen or _GIVEN_UP)."""
    size = np.uint64(len(table))
    while at < end:
        key = keys[at]
        if key != MISSING_KEY:
            hashed = mix(key)
            slot = reduce_hash(
                hashed, size
            )  # unsigned, as all indices here: there is no test for negative ones
            number = np.uint64(table[slot])
            while number != _0 and seen[number - _1] != key:
                slot = slot + _1 if slot + _1 < size else _0
                number = np.uint64(table[slot])
            if number == _0:
                if used == len(seen):
                    return at, _GIVEN_UP
                seen[used] = key
                used += 1
                table[slot] = used
                _raise(hashed, registers)
        at += 1
    return at, used


@njit(nogil=True, cache=True, inline="always")
def _raise(hashed, registers):  # type: ignore[no-untyped-def]  # compiled
    """The lowest 14 bits choose a register; it keeps the largest number of zeros, plus one, that end the others."""
    rank = np.uint8(trailing_zeros((hashed >> _14) | _LAST) + _1)
    index = hashed & _INDEX
    if rank > registers[index]:
        registers[index] = rank
