"""How many distinct values a feature has: their keys while they are few, an estimate by HyperLogLog beyond that.

A unit keeps up to UNIT_KEYS keys of a feature (TOTAL_KEYS if it is all of its source, so that small inputs are
counted exactly), and all units together TOTAL_KEYS. Past either, the feature has registers only: 2^14 of them, a
relative standard error of 0.8% (Flajolet et al. 2007, without large-range correction: 64-bit hashes need none).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dlrm_app.preprocess.fields import trailing_zeros
from dlrm_app.preprocess.hashing import MISSING_KEY, mix, next_place, reduce_hash

UNIT_KEYS = 1 << 12
TOTAL_KEYS = 1 << 17
_NUM_REGISTERS = 1 << 14
_1, _14, _INDEX, _LAST = (np.uint64(value) for value in (1, 14, _NUM_REGISTERS - 1, 1 << 50))


class Sketch:
    """The distinct keys of one feature, ``exact`` while they are at most ``max_keys``."""

    def __init__(self, max_keys: int) -> None:
        self.exact = True
        self.registers = np.zeros(_NUM_REGISTERS, np.uint8)
        self._max_keys = max_keys
        self._used = 0
        self._keys = np.full(1 << 10, MISSING_KEY, np.uint64)

    def add(self, keys: NDArray[np.uint64]) -> None:
        """Adds ``keys`` [n]; missing ones are left out."""
        at = 0
        while self.exact and at < len(keys):
            at, self._used = _insert(keys, at, self._keys, self._used, self.registers)
            if at < len(keys):
                self._make_room()
        if not self.exact:
            _register(keys, at, self.registers)

    def _make_room(self) -> None:
        if self._used >= self._max_keys:
            self._give_up()
            return
        keys = self.keys()
        self._keys = np.full(4 * len(self._keys), MISSING_KEY, np.uint64)
        _insert(keys, 0, self._keys, 0, self.registers)

    def _give_up(self) -> None:
        self.exact = False
        self._keys = self._keys[:0]

    def keep(self, max_keys: int) -> None:
        """Keeps only registers if there are more than ``max_keys`` keys."""
        if self._used > max_keys:
            self._give_up()

    def keys(self) -> NDArray[np.uint64]:
        """The keys seen, in no particular order; none if the sketch is not exact."""
        return self._keys[self._keys != MISSING_KEY]

    def join(self, keys: NDArray[np.uint64], registers: NDArray[np.uint8] | None) -> None:
        """Adds what another sketch has seen: its ``keys``, or its ``registers`` if it is not exact."""
        if registers is None:
            self.add(keys)
        else:
            self._give_up()
            np.maximum(self.registers, registers, out=self.registers)

    def distinct(self) -> int:
        """How many distinct keys were added; an estimate if not ``exact``."""
        if self.exact:
            return self._used
        count = len(self.registers)
        raw = 0.7213 / (1 + 1.079 / count) * count * count / np.exp2(-self.registers.astype(np.float64)).sum()
        empty = int((self.registers == 0).sum())
        return round(count * math.log(count / empty) if raw <= 2.5 * count and empty else raw)


@njit(nogil=True, cache=True)
def _insert(keys, start, table, used, registers):  # type: ignore[no-untyped-def]  # compiled
    """Adds keys until the table is half full: (how far it came, keys in the table)."""
    size = len(table)
    for i in range(start, len(keys)):
        key = keys[i]
        if key == MISSING_KEY:
            continue
        hashed = mix(key)
        place = np.int64(reduce_hash(hashed, size))
        while table[place] != key and table[place] != MISSING_KEY:
            place = next_place(place, size)
        if table[place] == key:
            continue
        if 2 * used >= size:
            return i, used
        table[place] = key
        used += 1
        _raise(hashed, registers)
    return len(keys), used


@njit(nogil=True, cache=True)
def _register(keys, start, registers):  # type: ignore[no-untyped-def]  # compiled
    for i in range(start, len(keys)):
        if keys[i] != MISSING_KEY:
            _raise(mix(keys[i]), registers)


@njit(nogil=True, cache=True, inline="always")
def _raise(hashed, registers):  # type: ignore[no-untyped-def]  # compiled
    """The lowest 14 bits choose a register; it keeps the largest number of zeros, plus one, that end the others."""
    rank = np.uint8(trailing_zeros((hashed >> _14) | _LAST) + _1)
    index = np.int64(hashed & _INDEX)
    if rank > registers[index]:
        registers[index] = rank


def count_collisions(sketch: Sketch, num_embeddings: int) -> int:
    """How many distinct values share their hashed id with another one; expected rather than counted if not exact."""
    size = num_embeddings - 1
    distinct = sketch.distinct()
    if not sketch.exact:
        return round(-distinct * math.expm1((distinct - 1) * math.log1p(-1 / size))) if size > 1 else distinct
    _, counts = np.unique(_ids(sketch.keys(), size), return_counts=True)
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

    def write(self, sketches: Sequence[Sketch]) -> None:
        sizes = np.array([len(s.keys()) if s.exact else -1 for s in sketches], np.int64)
        with self.path.open("wb") as file:
            sizes.tofile(file)
            for sketch in sketches:
                (sketch.keys() if sketch.exact else sketch.registers).tofile(file)

    def join_into(self, total: Sketch, feature: int) -> None:
        """Adds feature number ``feature`` of the unit to ``total``."""
        sizes = np.fromfile(self.path, np.int64, self.num_features)
        offset = 8 * self.num_features
        offset += int(np.where(sizes < 0, _NUM_REGISTERS, 8 * sizes)[:feature].sum())
        if sizes[feature] < 0:
            total.join(
                np.empty(0, np.uint64), np.fromfile(self.path, np.uint8, _NUM_REGISTERS, offset=offset)
            )
        else:
            total.join(np.fromfile(self.path, np.uint64, int(sizes[feature]), offset=offset), None)
