"""How often each id of a feature occurs, in bounded memory.

Tables are cut into slices of ids that are counted together as far as memory allows, and the columns of the others
are read again. What remains of a slice is small: its most frequent ids, and how many ids occur how often.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dlrm_app.dataset.manifest import SparseColumn
from dlrm_app.kernels.compiled import njit

NUM_TOP = 10
_COUNT_BYTES = 8
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Slice:
    """The ids [low, high) of a feature."""

    column: SparseColumn
    low: int
    high: int


def make_rounds(columns: Sequence[SparseColumn], memory_bytes: int) -> list[list[Slice]]:
    """All ids of all columns, in rounds of at most ``memory_bytes`` of counters each, and at least one round."""
    room = max(memory_bytes // _COUNT_BYTES, 1)
    rounds: list[list[Slice]] = [[]]
    used = 0
    for column in columns:
        low = 0
        while low < column.num_embeddings:
            if used == room:
                rounds.append([])
                used = 0
            high = min(low + room - used, column.num_embeddings)
            rounds[-1].append(Slice(column, low, high))
            used += high - low
            low = high
    return rounds


@dataclass
class Popularity:
    """What is known of a feature's ids: over the studied split, unless said otherwise."""

    lookups: int = 0
    """Occurrences of all ids, those of missing values left out; so too in all that follows."""
    missing: int = 0
    """Occurrences of the id that stands for a missing value."""
    top: list[tuple[int, int]] = field(default_factory=list)
    """(id, occurrences) of the most frequent ids."""
    ids_by_count: Counter[int] = field(default_factory=Counter)
    """Occurrences → how many ids occur so often; ids that do not occur are left out."""
    unseen: Counter[str] = field(default_factory=Counter)
    """Other splits' lookups of ids that the studied split does not have."""

    @property
    def ids_used(self) -> int:
        return sum(self.ids_by_count.values())

    def top_share(self, count: int) -> float:
        """The share of lookups that go to the ``count`` most frequent ids."""
        return sum(occurrences for _, occurrences in self.top[:count]) / max(self.lookups, 1)

    def coverage(self) -> list[tuple[int, float]]:
        """(k, share of lookups that go to the k most frequent ids), for every k where the share's growth changes."""
        points, ids, lookups = [], 0, 0
        for count in sorted(self.ids_by_count, reverse=True):
            ids += self.ids_by_count[count]
            lookups += count * self.ids_by_count[count]
            points.append((ids, lookups / max(self.lookups, 1)))
        return points


class SliceCounts:
    """The counters of one slice."""

    def __init__(self, part: Slice) -> None:
        self._low = part.low
        self._missing_id = part.column.encoding.get("missing_id")
        self._counts = np.zeros(part.high - part.low, np.int64)

    def add(self, ids: NDArray[np.int32]) -> None:
        _count(ids, self._low, self._counts)

    def unseen(self, ids: NDArray[np.int32]) -> int:
        """How many of ``ids`` are of this slice and have not been added."""
        return int(_unseen(ids, self._low, self._counts))

    def put_into(self, total: Popularity) -> None:
        counts = self._counts
        if self._missing_id is not None and 0 <= self._missing_id - self._low < len(counts):
            total.missing = int(counts[self._missing_id - self._low])
            counts[self._missing_id - self._low] = 0
        total.lookups += int(counts.sum())
        for start in range(0, len(counts), _CHUNK):
            chunk = counts[start : start + _CHUNK]
            occurrences, num_ids = np.unique(chunk[chunk > 0], return_counts=True)
            total.ids_by_count.update(dict(zip(occurrences.tolist(), num_ids.tolist(), strict=True)))
            best = np.argsort(-chunk, kind="stable")[:NUM_TOP]
            total.top += [(self._low + start + int(at), int(chunk[at])) for at in best if chunk[at]]
        total.top = sorted(total.top, key=lambda entry: (-entry[1], entry[0]))[:NUM_TOP]


@njit(nogil=True, cache=True)
def _count(ids, low, counts):  # type: ignore[no-untyped-def]  # compiled
    for i in range(len(ids)):
        slot = ids[i] - low
        if slot >= 0 and slot < len(counts):
            counts[slot] += 1


@njit(nogil=True, cache=True)
def _unseen(ids, low, counts):  # type: ignore[no-untyped-def]  # compiled
    total = 0
    for i in range(len(ids)):
        slot = ids[i] - low
        if slot >= 0 and slot < len(counts) and counts[slot] == 0:
            total += 1
    return total
