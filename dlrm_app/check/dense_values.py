"""The distribution of a dense column's values in one pass: exact moments, a histogram of fine bins."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlrm_app.kernels.compiled import njit

_NUM_BINS = 1 << 16


@dataclass(frozen=True)
class Histogram:
    """``counts[i]`` values lie between ``edges[i]`` and ``edges[i + 1]``."""

    edges: NDArray[np.float64]
    counts: NDArray[np.int64]


class DenseValues:
    """Bins are the highest 16 bits of a float32: a width of less than 1% of the value, at any size."""

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
        _fill(values.view(np.uint32), self._bins)

    @property
    def mean(self) -> float:
        return self._sum / self.count if self.count else float("nan")

    def histogram(self, num_bars: int) -> Histogram:
        """Of bars of equal width; each value falls on the bar of its bin's middle."""
        low, high = (self.low, self.high) if self.count else (0.0, 1.0)
        if high <= low:
            low, high = low - 0.5, low + 0.5
        edges = np.linspace(low, high, num_bars + 1)
        used = np.flatnonzero(self._bins)
        middles = (used.astype(np.uint32) << 16 | 0x8000).view(np.float32).astype(np.float64)
        middles[(used & 0x7FFF) == 0] = 0.0  # the bin of 0 itself
        bars = np.clip(((middles - low) / (high - low) * num_bars).astype(np.int64), 0, num_bars - 1)
        counts = np.bincount(bars, weights=self._bins[used], minlength=num_bars).astype(np.int64)
        return Histogram(edges, counts)


@njit(nogil=True, cache=True)
def _fill(bits, bins):  # type: ignore[no-untyped-def]  # compiled
    for i in range(len(bits)):
        bins[bits[i] >> np.uint32(16)] += 1
