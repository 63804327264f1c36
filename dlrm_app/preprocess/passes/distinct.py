"""How many distinct values a feature has: their keys while they are few, an estimate by HyperLogLog beyond that.

A unit keeps up to UNIT_KEYS keys of a feature (TOTAL_KEYS if it is all of its source, so that small inputs are
counted exactly), and all units together TOTAL_KEYS. Past either, the feature has registers only: 2^14 of them, a
relative standard error of 0.8% (Flajolet et al. 2007, without large-range correction: 64-bit hashes need none).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dlrm_app.dataset.dictionary import Columns
from dlrm_app.dataset.manifest import SparseColumn
from dlrm_app.kernels.compiled import njit
from dlrm_app.preprocess.read.fields import trailing_zeros
from dlrm_app.preprocess.units.executor import Finish
from dlrm_app.preprocess.units.hashing import MISSING_KEY, mix, reduce_hash
from dlrm_app.preprocess.units.journal import Journal

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

    def __len__(self) -> int:
        return len(self._used)

    def add(self, keys: Columns, features: Sequence[int]) -> None:
        """Adds ``keys`` [C] of ``features`` [C]; missing ones are left out."""
        indices = np.array(features, np.int64)
        state = self._keys, self._tables, self._used, self.registers
        _add(keys.values, keys.begins, keys.ends, indices, *state)

    def is_exact(self, feature: int) -> bool:
        return bool(self._used[feature] >= 0)

    def keep(self, max_keys: int) -> None:
        """Keeps only registers of features with more than ``max_keys`` keys."""
        self._used[self._used > max_keys] = _GIVEN_UP

    def keys(self, feature: int) -> NDArray[np.uint64]:
        """The keys seen, in the order of their first occurrences; none if the feature is not exact."""
        return self._keys[feature, : max(self._used[feature], 0)]

    def join(self, words: NDArray[np.uint64], bounds: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Adds what other sketches have seen: for every feature words[bounds[f]:bounds[f + 1]].

        They are its ``sizes[f]`` keys or, if that is negative, its registers.
        """
        _join(words, bounds, sizes, self._keys, self._tables, self._used, self.registers)

    def distinct(self, feature: int) -> int:
        """How many distinct keys were added; an estimate if not exact."""
        if self.is_exact(feature):
            return int(self._used[feature])
        registers = self.registers[feature]
        count = len(registers)
        raw = 0.7213 / (1 + 1.079 / count) * count * count / np.exp2(-registers.astype(np.float64)).sum()
        empty = int((registers == 0).sum())
        return round(count * math.log(count / empty) if raw <= 2.5 * count and empty else raw)


@njit(nogil=True, cache=True)
def _add(keys, begins, ends, features, seen, tables, used, registers):  # type: ignore[no-untyped-def]  # compiled
    for c in range(len(features)):
        _see(keys, begins[c], ends[c], features[c], seen, tables, used, registers)


@njit(nogil=True, cache=True)
def _join(words, bounds, sizes, seen, tables, used, registers):  # type: ignore[no-untyped-def]  # compiled
    for feature in range(len(sizes)):
        at, end = bounds[feature], bounds[feature + 1]
        if sizes[feature] >= 0:
            _see(words, at, end, feature, seen, tables, used, registers)
            continue
        used[feature] = _GIVEN_UP
        theirs = words[at:end].view(np.uint8)
        for register in range(len(theirs)):
            registers[feature, register] = max(registers[feature, register], theirs[register])


@njit(nogil=True, cache=True)
def _see(keys, at, end, feature, seen, tables, used, registers):  # type: ignore[no-untyped-def]  # compiled
    """Adds keys[at:end] of ``feature``."""
    if used[feature] >= 0:
        state = seen[feature], tables[feature], registers[feature]
        at, used[feature] = _insert(keys, at, end, state, used[feature])
    _register(keys, at, end, registers[feature])


@njit(nogil=True, cache=True)
def _insert(keys, at, end, state, used):  # type: ignore[no-untyped-def]  # compiled
    """Adds keys[at:end] until there is no room: (how far it came, keys seen or _GIVEN_UP)."""
    seen, table, registers = state
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


@njit(nogil=True, cache=True)
def _register(keys, at, end, registers):  # type: ignore[no-untyped-def]  # compiled
    while at < end:
        if keys[at] != MISSING_KEY:
            _raise(mix(keys[at]), registers)
        at += 1


@njit(nogil=True, cache=True, inline="always")
def _raise(hashed, registers):  # type: ignore[no-untyped-def]  # compiled
    """The lowest 14 bits choose a register; it keeps the largest number of zeros, plus one, that end the others."""
    rank = np.uint8(trailing_zeros((hashed >> _14) | _LAST) + _1)
    index = hashed & _INDEX
    if rank > registers[index]:
        registers[index] = rank


def count_collisions(sketches: Sketches, feature: int, num_embeddings: int) -> int:
    """How many distinct values share their hashed id with another one; expected rather than counted if not exact."""
    size = num_embeddings - 1
    distinct = sketches.distinct(feature)
    if not sketches.is_exact(feature):
        return round(-distinct * math.expm1((distinct - 1) * math.log1p(-1 / size))) if size > 1 else distinct
    _, counts = np.unique(_ids(sketches.keys(feature), size), return_counts=True)
    return int(counts[counts > 1].sum())


@njit(nogil=True, cache=True)
def _ids(keys, size):  # type: ignore[no-untyped-def]  # compiled
    ids = np.empty(len(keys), np.int64)
    for i in range(len(keys)):
        ids[i] = np.int64(reduce_hash(mix(keys[i]), size))
    return ids


@dataclass(frozen=True)
class SketchFile:
    """The sketches of one unit: int64 [F] numbers of keys (-1: registers instead), then each feature's."""

    path: Path
    num_features: int

    def write(self, sketches: Sketches) -> None:
        exact = [sketches.is_exact(feature) for feature in range(len(sketches))]
        parts = [sketches.keys(f) if exact[f] else sketches.registers[f] for f in range(len(sketches))]
        sizes = [len(part) if is_exact else -1 for part, is_exact in zip(parts, exact, strict=True)]
        with self.path.open("wb") as file:
            file.write(b"".join([np.array(sizes, np.int64).tobytes(), *(part.tobytes() for part in parts)]))

    def join_into(self, totals: Sketches, first: int) -> None:
        """Adds the features from number ``first`` on to ``totals``."""
        sizes = np.fromfile(self.path, np.int64, self.num_features)
        ends = 8 * self.num_features + np.cumsum(np.where(sizes < 0, _NUM_REGISTERS, 8 * sizes))
        start = int(ends[first - 1]) if first else 8 * self.num_features
        part = slice(first, first + len(totals))
        bounds = np.array([start, *ends[part]]) // 8
        words = np.fromfile(self.path, np.uint64, int(bounds[-1] - bounds[0]), offset=start)
        totals.join(words, bounds - bounds[0], sizes[part])


_TOGETHER = 8
"""Features whose sketches are joined at a time: enough for files to be read in few pieces, few enough to share out."""


@dataclass(frozen=True)
class CountedFeatures:
    """A group's columns, with their numbers of distinct values and collisions."""

    columns: tuple[SparseColumn, ...]


@dataclass(frozen=True)
class CountDistinct:
    """Joins the sketches of the features of a group; ``sparse``: all features, in their order."""

    title: ClassVar[str] = "counting distinct values"
    files: tuple[Path, ...]
    """The sketches of all units."""
    sparse: tuple[SparseColumn, ...]
    journal: Journal[CountedFeatures]

    @property
    def num_groups(self) -> int:
        return -(-len(self.sparse) // _TOGETHER)

    def __call__(self, group: int) -> Finish[CountedFeatures]:
        first = group * _TOGETHER
        columns = self.sparse[first : first + _TOGETHER]
        totals = Sketches(len(columns), TOTAL_KEYS)
        for path in self.files:
            SketchFile(path, len(self.sparse)).join_into(totals, first)
        counted = tuple(_with_counts(column, totals, feature) for feature, column in enumerate(columns))
        return self.journal.unit(0, group).finish(CountedFeatures(counted))


def _with_counts(column: SparseColumn, totals: Sketches, feature: int) -> SparseColumn:
    is_hashed = column.encoding["kind"] == "hash"
    return replace(
        column,
        distinct=totals.distinct(feature),
        collisions=count_collisions(totals, feature, column.num_embeddings) if is_hashed else None,
        estimated=not totals.is_exact(feature),
    )
