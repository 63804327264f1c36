"""Counts of the rows that have further labels, of parts of a split and of a whole one."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dlrm_app.dataset.manifest import LabelCounts, WeightSums

Counts = Sequence[Sequence[float]]
"""[L - 1, 4]: for each further label the rows that have it, those where it is 1, and the weights of both."""


def count_labels(
    further: NDArray[np.floating],
    labels: NDArray[np.uint8],
    weights: NDArray[np.floating] | None,
    kept_share: float,
) -> NDArray[np.float64]:
    """Counts rows with ``further`` labels [L - 1, R], NaN where a row lacks one, and main ``labels`` [R].

    A row counts by its weight, as float32, and 1 / ``kept_share`` times without the main label.
    """
    counts = np.ones(len(labels)) if weights is None else weights.astype(np.float32).astype(np.float64)
    counts = np.where(labels > 0, counts, counts / kept_share)
    known = ~np.isnan(further)
    positive = further == 1
    sums = known.sum(1), positive.sum(1), known @ counts, positive @ counts
    return np.stack([each.astype(np.float64) for each in sums], axis=1)


def label_counts(names: Sequence[str], parts: Sequence[Counts], *, are_alike: bool) -> dict[str, LabelCounts]:
    """The counts of a split from those of its ``parts``. ``are_alike``: all rows count once.

    Sums of weights are rounded to twelve digits, so that they do not depend on the size of parts.
    """
    found = {}
    for number, name in enumerate(names):
        rows, positives, weight, of_positives = (
            math.fsum(part[number][place] for part in parts if part) for place in range(4)
        )
        weights = None if are_alike else WeightSums(float(f"{weight:.12g}"), float(f"{of_positives:.12g}"))
        found[name] = LabelCounts(int(rows), int(positives), weights)
    return found
