"""Numbers of distinct values of features whose ids are hashes.

<unit>.sketch holds the distinct keys of each feature while they are few, and registers of HyperLogLog beyond that. A
unit keeps up to UNIT_KEYS keys (TOTAL_KEYS if it is all of its source, so that small inputs are counted exactly), and
all units together TOTAL_KEYS. A feature with more keys has registers only: 2^14 of them, a relative standard error of
0.8% (Flajolet et al. 2007, without large-range correction: 64-bit hashes need none).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from dlrm_app.dataset.manifest import SparseColumn
from dlrm_app.encoding.sparse import hash_ids
from dlrm_app.kernels.compiled import njit
from dlrm_app.kernels.hashing import empty_slots, find_slot, mix
from dlrm_app.logs.strings import MISSING_KEY
from dlrm_app.logs.words import trailing_zeros

UNIT_KEYS = 1 << 12
TOTAL_KEYS = 1 << 17
_NUM_REGISTERS = 1 << 14


class _KeySet:
    """Distinct keys, in an open-addressing table that grows."""

    def __init__(self) -> None:
        self._slots, self._used = empty_slots(1 << 10), 0

    def __len__(self) -> int:
        return self._used

    @property
    def keys(self) -> NDArray[np.uint64]:
        """The keys, in any order."""
        return self._slots[self._slots != MISSING_KEY]

    def add(self, keys: NDArray[np.uint64]) -> None:
        """Adds ``keys``; missing ones are left out."""
        at = 0
        while at < len(keys):
            at, self._used = _insert(keys, at, self._slots, self._used)
            if at < len(keys):
                old = self.keys
                self._slots, self._used = empty_slots(4 * len(self._slots)), 0
                self.add(old)


@njit(nogil=True, cache=True)
def _insert(keys, start, slots, used):  # type: ignore[no-untyped-def]  # compiled
    """Inserts keys from ``start`` on until the table is half full. Returns (the next position, keys in the table)."""
    for i in range(start, len(keys)):
        slot = find_slot(keys[i], slots)  # a missing key finds a free slot, which has the same mark
        if slots[slot] != keys[i]:
            if 2 * used >= len(slots):
                return i, used
            slots[slot] = keys[i]
            used += 1
    return len(keys), used


class Sketch:
    """The distinct keys of a feature: all keys up to ``max_keys`` of them, otherwise ``registers`` alone."""

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
        """Adds the keys of a sketch in a file."""
        count = int.from_bytes(file.read(8), "little", signed=True)
        if count >= 0:
            self.add(np.frombuffer(file.read(8 * count), np.uint64, count))
            return
        self.keep(-1)
        assert self.registers is not None, "keep(-1) leaves registers"
        other_registers = np.frombuffer(file.read(_NUM_REGISTERS), np.uint8, _NUM_REGISTERS)
        np.maximum(self.registers, other_registers, out=self.registers)

    def distinct(self) -> int:
        """The number of distinct keys; an estimate if there are registers."""
        if self.registers is None:
            return len(self._keys)
        raw = 0.7213 / (1 + 1.079 / _NUM_REGISTERS) * _NUM_REGISTERS * _NUM_REGISTERS
        raw /= np.exp2(-self.registers.astype(np.float64)).sum()
        empty = int((self.registers == 0).sum())
        is_small = raw <= 2.5 * _NUM_REGISTERS and empty
        return round(_NUM_REGISTERS * math.log(_NUM_REGISTERS / empty) if is_small else raw)

    def collisions(self, num_embeddings: int) -> int:
        """The number of distinct values that share their hashed id; the expected number if there are registers."""
        if self.registers is None:
            _, counts = np.unique(hash_ids(self._keys.keys, num_embeddings), return_counts=True)
            return int(counts[counts > 1].sum())
        size, distinct = num_embeddings - 1, self.distinct()
        return round(-distinct * math.expm1((distinct - 1) * math.log1p(-1 / size))) if size > 1 else distinct


def count_distinct(files: Sequence[Path], columns: Sequence[SparseColumn]) -> list[SparseColumn]:
    """``columns`` with their numbers of distinct values and collisions, from the sketches of units in ``files``.

    Columns that have them already stay as they are.
    """
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
    """Adds keys to registers.

    The lowest 14 bits of a hash choose a register. It keeps the largest number of zeros, plus one, at the end of the
    other bits.
    """
    for key in keys:
        if key != MISSING_KEY:
            hashed = mix(key)
            rank = np.uint8(trailing_zeros((hashed >> np.uint64(14)) | np.uint64(1 << 50)) + np.uint64(1))
            index = hashed & np.uint64(_NUM_REGISTERS - 1)
            if rank > registers[index]:
                registers[index] = rank
