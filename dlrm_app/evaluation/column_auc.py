"""How well one column alone tells the clicks. Does not import torch."""

import math

import numpy as np
from numpy.typing import NDArray


def auc_of_ids(ids: NDArray[np.int32] | NDArray[np.int64], labels: NDArray[np.bool_]) -> float:
    """The AUC of a one-hot feature alone: the click rates of its ids in one half of the rows rank the other half.

    ``ids`` [n] of at least 0, ``labels`` [n].
    """
    size = int(ids.max(initial=0)) + 1
    rows = np.bincount(ids[::2], minlength=size)
    clicks = np.bincount(ids[::2], weights=labels[::2], minlength=size)
    prior = labels[::2].mean() if len(labels) else 0.0
    rates = (clicks + prior) / (rows + 1)
    return auc_of(rates[ids[1::2]], labels[1::2])


def auc_of(values: NDArray[np.float64], labels: NDArray[np.bool_]) -> float:
    """The AUC of ``values`` [n], ties counting half; nan if all labels are of one class."""
    positives, negatives = np.sort(values[labels]), np.sort(values[~labels])
    if not (len(positives) and len(negatives)):
        return math.nan
    wins = np.searchsorted(negatives, positives) + np.searchsorted(negatives, positives, side="right")
    return float(wins.sum() / (2 * len(positives) * len(negatives)))
