"""Distributions in one pass: values of dense columns in fine bins, ids of sparse ones counted."""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dlrm_app.dataset.manifest import SparseColumn
from dlrm_app.kernels.compiled import njit

_NUM_BINS = 1 << 16
_COUNT_BYTES = 8
_CHUNK = 1 << 20


class DenseValues:
    """Exact moments, and a histogram whose bins are the highest 16 bits of a float32: less than 1% of the value wide."""

    def __init__(self) -> None:
        self.count = 0
        self.zeros = 0
        self.low, self.high = np.inf, -np.inf
        self._sum = 0.0
        self._bins = np.zeros(_NUM_BINS, np.int64)

    def add(self, values: NDArray[np.float32]) -> None:
        """Adds finite values."""
        if not len(values):
            return
        self.count += len(values)
        self.zeros += int(np.count_nonzero(values == 0))
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        self._sum += float(values.sum(dtype=np.float64))
        self._bins += np.bincount(values.view(np.uint32) >> np.uint32(16), minlength=_NUM_BINS)

    @property
    def mean(self) -> float:
        return self._sum / self.count if self.count else float("nan")

    def histogram(self, num_bars: int) -> tuple[list[float], list[int]]:
        """(edges of bars of equal width, the number of values between each two); of a value its bin's middle counts."""
        low, high = (self.low, self.high) if self.count else (0.0, 1.0)
        if high <= low:
            low, high = low - 0.5, low + 0.5
        edges = np.linspace(low, high, num_bars + 1)
        used = np.flatnonzero(self._bins)
        middles = (used.astype(np.uint32) << 16 | 0x8000).view(np.float32).astype(np.float64)
        middles[(used & 0x7FFF) == 0] = 0.0  # the bin of 0 itself
        bars = np.clip(((middles - low) / (high - low) * num_bars).astype(np.int64), 0, num_bars - 1)
        counts = np.bincount(bars, weights=self._bins[used], minlength=num_bars).astype(np.int64)
        return edges.tolist(), counts.tolist()


class Popularity:
    """Occurrences of each id of a feature."""

    def __init__(self, column: SparseColumn) -> None:
        self._missing_id = column.encoding.get("missing_id")
        self._rare_id = column.encoding.get("rare_id")
        self._counts = np.zeros(column.num_embeddings, np.int64)

    def add(self, ids: NDArray[np.int32]) -> None:
        _count(ids, self._counts)

    def unseen(self, ids: NDArray[np.int32]) -> int:
        """The number of ``ids`` that have not been added."""
        return int(np.count_nonzero(self._counts[ids] == 0))

    @property
    def missing(self) -> int:
        """Occurrences of the id that stands for a missing value."""
        return 0 if self._missing_id is None else int(self._counts[self._missing_id])

    @property
    def unknown_share(self) -> float | None:
        """The share of lookups of values that the vocabulary does not know; None without one."""
        if self._rare_id is None:
            return None
        return float(self._counts[self._rare_id] / max(self._counts.sum() - self.missing, 1))

    @cached_property
    def curve(self) -> list[tuple[int, int]]:
        """(k, lookups of the k most frequent ids), for every k where the growth changes; missing values left out.

        To be asked for once all ids are added, as all that follows.
        """
        ids_by_count: Counter[int] = Counter()
        for start in range(0, len(self._counts), _CHUNK):
            chunk = self._counts[start : start + _CHUNK]
            occurrences, num_ids = np.unique(chunk[chunk > 0], return_counts=True)
            ids_by_count.update(dict(zip(occurrences.tolist(), num_ids.tolist(), strict=True)))
        if self.missing:
            ids_by_count[self.missing] -= 1
        points, ids, lookups = [(0, 0)], 0, 0
        for count in sorted(ids_by_count, reverse=True):
            ids += ids_by_count[count]
            lookups += count * ids_by_count[count]
            points.append((ids, lookups))
        return points

    @property
    def ids_used(self) -> int:
        return self.curve[-1][0]

    def covered(self, k: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
        """The share of lookups that go to the ``k`` most frequent ids."""
        ids, lookups = zip(*self.curve, strict=True)  # between two points ids are equally frequent
        share: NDArray[np.float64] = np.interp(k, ids, lookups) / max(lookups[-1], 1)
        return share


def fitting(columns: Sequence[SparseColumn], memory_bytes: int) -> list[SparseColumn]:
    """The columns whose ids can be counted in ``memory_bytes``: small tables first."""
    fitting = []
    for column in sorted(columns, key=lambda column: column.num_embeddings):
        memory_bytes -= _COUNT_BYTES * column.num_embeddings
        if memory_bytes >= 0:
            fitting.append(column)
    return fitting


@njit(nogil=True, cache=True)
def _count(ids, counts):  # type: ignore[no-untyped-def]  # compiled
    for i in range(len(ids)):
        counts[ids[i]] += 1
