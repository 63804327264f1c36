"""AUCs in NumPy: of one column alone, and of counts. Does not import torch."""

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
    distinct, places = np.unique(values, return_inverse=True)
    positives, negatives = (
        np.bincount(places[chosen], minlength=len(distinct)) for chosen in (labels, ~labels)
    )
    return auc_of_counts(positives.astype(np.float64), negatives.astype(np.float64))


def auc_of_counts(positives: NDArray[np.float64], negatives: NDArray[np.float64]) -> float:
    """The probability that a positive is above a negative, a tie counting half; nan without one of them.

    The arguments are the numbers, or the weights, of those with each score, in rising order of the scores.
    """
    pairs = positives.sum() * negatives.sum()
    return float(positives @ (np.cumsum(negatives) - negatives / 2) / pairs) if pairs else math.nan
