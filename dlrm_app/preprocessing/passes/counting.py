"""Counts of values: how often each key occurs in a unit, for vocabularies, and how many distinct keys there are, for hashes.

<unit>.counts is an Arrow file with a record batch per feature: keys and counts in buckets by the highest 8 bits of the
keys' hashes, so that all units' counts can be added up a few buckets at a time; within a bucket in the order of keys.

<unit>.sketch holds the distinct keys of each feature while they are few, and registers of HyperLogLog beyond that. A unit
keeps up to UNIT_KEYS keys (TOTAL_KEYS if it is all of its source, so that small inputs are counted exactly), and all
units together TOTAL_KEYS. Past either, the feature has registers only: 2^14 of them, a relative standard error of 0.8%
(Flajolet et al. 2007, without large-range correction: 64-bit hashes need none).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import array_of, numbers_of
from dlrm_app.dataset.manifest import SparseColumn
from dlrm_app.kernels.compiled import njit
from dlrm_app.preprocessing.encode.sparse import hash_ids, mix, next_slot, reduce_hash
from dlrm_app.preprocessing.read.fields import MISSING_KEY
from dlrm_app.preprocessing.read.plain_lines import trailing_zeros

NUM_BUCKETS = 256
_NO_SPANS = np.empty((0, 2), np.int64)


class Counts:
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


UNIT_KEYS = 1 << 12
TOTAL_KEYS = 1 << 17
_NUM_REGISTERS = 1 << 14


class _KeySet:
    """Distinct keys, in an open table whose free slots hold MISSING_KEY."""

    def __init__(self) -> None:
        self._table, self._used = np.full(1 << 10, MISSING_KEY), 0

    def __len__(self) -> int:
        return self._used

    @property
    def keys(self) -> NDArray[np.uint64]:
        """The keys, in no order."""
        return self._table[self._table != MISSING_KEY]

    def add(self, keys: NDArray[np.uint64]) -> None:
        """Adds ``keys``; missing ones are left out."""
        at = 0
        while at < len(keys):
            at, self._used = _insert(keys, at, self._table, self._used)
            if at < len(keys):
                old = self.keys
                self._table, self._used = np.full(4 * len(self._table), MISSING_KEY), 0
                self.add(old)


@njit(nogil=True, cache=True)
def _insert(keys, start, table, used):  # type: ignore[no-untyped-def]  # compiled
    """Inserts from ``start`` until the table is half full: (how far it came, keys in the table)."""
    size = len(table)
    for i in range(start, len(keys)):
        key = keys[i]
        slot = np.int64(reduce_hash(mix(key), size))
        while table[slot] != MISSING_KEY and table[slot] != key:
            slot = next_slot(slot, size)
        if table[slot] != key:
            if 2 * used >= size:
                return i, used
            table[slot] = key
            used += 1
    return len(keys), used


class Sketch:
    """The distinct keys of a feature: all of them while they are at most ``max_keys``, else ``registers`` alone."""

    def __init__(self, max_keys: int) -> None:
        self._keys, self._max_keys = _KeySet(), max_keys
        self.registers: NDArray[np.uint8] | None = None

    def add(self, keys: NDArray[np.uint64]) -> None:
        """Adds ``keys``; missing ones are left out."""
        while self.registers is None and len(keys):
            self._keys.add(keys[: self._max_keys])
            keys = keys[self._max_keys :]
            self.keep(self._max_keys)
        if self.registers is not None:
            _raise(keys, self.registers)

    def keep(self, max_keys: int) -> None:
        """Keeps only registers if there are more than ``max_keys`` keys."""
        if self.registers is None and len(self._keys) > max_keys:
            self.registers = np.zeros(_NUM_REGISTERS, np.uint8)
            _raise(self._keys.keys, self.registers)
            self._keys = _KeySet()

    def write(self, file: BinaryIO) -> None:
        """Writes the number of keys and the keys, or -1 and the registers."""
        content = self._keys.keys if self.registers is None else self.registers
        count = len(content) if self.registers is None else -1
        file.write(count.to_bytes(8, "little", signed=True) + content.tobytes())

    def join(self, file: BinaryIO) -> None:
        """Adds what another sketch has written."""
        count = int.from_bytes(file.read(8), "little", signed=True)
        if count >= 0:
            self.add(np.frombuffer(file.read(8 * count), np.uint64, count))
            return
        self.keep(-1)
        assert self.registers is not None, "keep(-1) leaves registers"
        theirs = np.frombuffer(file.read(_NUM_REGISTERS), np.uint8, _NUM_REGISTERS)
        np.maximum(self.registers, theirs, out=self.registers)

    def distinct(self) -> int:
        """Number of distinct keys added; an estimate if there are registers."""
        if self.registers is None:
            return len(self._keys)
        raw = 0.7213 / (1 + 1.079 / _NUM_REGISTERS) * _NUM_REGISTERS * _NUM_REGISTERS
        raw /= np.exp2(-self.registers.astype(np.float64)).sum()
        empty = int((self.registers == 0).sum())
        is_small = raw <= 2.5 * _NUM_REGISTERS and empty
        return round(_NUM_REGISTERS * math.log(_NUM_REGISTERS / empty) if is_small else raw)

    def collisions(self, num_embeddings: int) -> int:
        """Number of distinct values that share their hashed id with another one; the expected one if there are registers."""
        if self.registers is None:
            _, counts = np.unique(hash_ids(self._keys.keys, num_embeddings), return_counts=True)
            return int(counts[counts > 1].sum())
        size, distinct = num_embeddings - 1, self.distinct()
        return round(-distinct * math.expm1((distinct - 1) * math.log1p(-1 / size))) if size > 1 else distinct


def count_distinct(files: Sequence[Path], columns: Sequence[SparseColumn]) -> list[SparseColumn]:
    """``columns`` with their numbers of distinct values and collisions, by the sketches that the units left; some know theirs."""
    totals = [Sketch(TOTAL_KEYS) for _ in columns]
    for path in files:
        with path.open("rb") as file:
            for total in totals:
                total.join(file)
    return [
        column
        if column.distinct is not None
        else replace(
            column,
            distinct=total.distinct(),
            collisions=total.collisions(column.num_embeddings) if column.encoding["kind"] == "hash" else None,
            estimated=total.registers is not None,
        )
        for total, column in zip(totals, columns, strict=True)
    ]


@njit(nogil=True, cache=True)
def _raise(keys, registers):  # type: ignore[no-untyped-def]  # compiled
    """The lowest 14 bits choose a register; it keeps the largest number of zeros, plus one, that end the others."""
    for key in keys:
        if key != MISSING_KEY:
            hashed = mix(key)
            rank = np.uint8(trailing_zeros((hashed >> np.uint64(14)) | np.uint64(1 << 50)) + np.uint64(1))
            index = hashed & np.uint64(_NUM_REGISTERS - 1)
            if rank > registers[index]:
                registers[index] = rank
