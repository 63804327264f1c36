"""How many distinct values a feature will have, judged by a sample."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlrm_app.preprocess.job.journal import Result
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


def growths(spec: Spec, studied: Sequence[Result]) -> dict[str, Growth]:
    """Of every sparse feature, from half of the sample to all of it."""
    half = studied[: max(len(studied) // 2, 1)]
    found = {}
    for place, column in enumerate(spec.sparse):
        few, many = _distinct(half, place), _distinct(studied, place)
        rows = [sum(result["rows"] for result in part) for part in (half, studied)]
        exponent = 0.0
        if rows[1] > rows[0] and few:
            exponent = math.log(many / few) / math.log(rows[1] / rows[0])
        found[column.name] = Growth(max(rows[1], 1), many, min(max(exponent, 0.0), 1.0))
    return found


def _distinct(results: Sequence[Result], place: int) -> int:
    keys: list[NDArray[np.uint64]] = [result["keys"][place] for result in results]
    return len(np.unique(np.concatenate(keys))) if keys else 0
