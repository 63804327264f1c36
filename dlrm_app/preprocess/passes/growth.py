"""How many distinct values a feature will have, judged by a sample."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dlrm_app.preprocess.passes.count_file import CountFile
from dlrm_app.preprocess.passes.counting import NUM_BUCKETS
from dlrm_app.preprocess.read.spec import Spec

_ALMOST_ONE = 1 - 1e-9


@dataclass(frozen=True)
class Growth:
    """How many distinct values ``rows`` rows have: a power law (Heaps) through two points of the sample."""

    rows: int
    distinct: int
    exponent: float

    def at(self, rows: float) -> int:
        if rows < 1 or not self.distinct:
            return 0
        return max(round(self.distinct * (rows / self.rows) ** self.exponent), 1)

    def often(self, rows: float, min_count: int) -> int:
        """How many values occur at least ``min_count`` times in ``rows`` rows (Karlin 1967, for the same power law)."""
        beta = min(self.exponent, _ALMOST_ONE)
        share = math.lgamma(min_count - beta) - math.lgamma(min_count) - math.lgamma(1 - beta)
        return min(round(self.at(rows) * math.exp(share)), self.at(rows))


def fit_growth(spec: Spec, sample: Sequence[tuple[CountFile, int]]) -> dict[str, Growth]:
    """Of every sparse feature, from every second unit of ``sample`` to all: the counts of units and their rows."""
    growth = {}
    for feature, column in enumerate(spec.sparse):
        (few, few_rows), (many, rows) = (_distinct(units, feature) for units in (sample[::2], sample))
        exponent = math.log(many / few) / math.log(rows / few_rows) if rows > few_rows and few else 0.0
        growth[column.name] = Growth(max(rows, 1), many, min(max(exponent, 0.0), 1.0))
    return growth


def _distinct(units: Sequence[tuple[CountFile, int]], feature: int) -> tuple[int, int]:
    """(distinct values of a feature in some units, rows of these)."""
    keys = [counts.counts(feature, 0, NUM_BUCKETS)[0] for counts, _ in units]
    return len(np.unique(np.concatenate(keys))) if keys else 0, sum(rows for _, rows in units)
