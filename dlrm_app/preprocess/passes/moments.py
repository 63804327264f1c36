"""Mean and deviation of dense columns, unit by unit."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Moments:
    """How many values a column has, their mean, and the sum of squared distances from it."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def joined(self, other: "Moments") -> "Moments":
        """Of both sets of values together (Chan, Golub, LeVeque 1983)."""
        count = self.count + other.count
        if count == 0:
            return self
        apart = other.mean - self.mean
        mean = self.mean + apart * other.count / count
        squares = self.squares + other.squares + apart * apart * self.count * other.count / count
        return Moments(count, mean, squares)

    @property
    def deviation(self) -> float:
        """The standard deviation; 1 for a column that does not vary, which is then only shifted."""
        return math.sqrt(self.squares / self.count) if self.squares > 0 else 1.0


def moments_of(values: NDArray[np.float64]) -> Moments:
    """Of the values that are not missing."""
    present = values[~np.isnan(values)]
    if not len(present):
        return Moments()
    mean = float(present.mean())
    return Moments(len(present), mean, float(((present - mean) ** 2).sum()))


def join_moments(units: Iterable[Sequence[Moments]], num_dense: int) -> list[Moments]:
    """Of all units, joined in their order, so that rounding is the same in every run."""
    totals = [Moments()] * num_dense
    for moments in units:
        totals = [total.joined(other) for total, other in zip(totals, moments, strict=True)]
    return totals
