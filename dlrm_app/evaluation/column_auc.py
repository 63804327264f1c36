"""AUCs in NumPy: of one column alone, of a list and the column whose values it shares, and of counts.

Does not import torch. Shapes: n rows; a list column has the ``values`` of all rows, those of row i at
``offsets[i]:offsets[i + 1]``.
"""

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


def auc_of_pair(
    ids: NDArray[np.int32] | NDArray[np.int64],
    values: NDArray[np.int32] | NDArray[np.int64],
    offsets: NDArray[np.int32] | NDArray[np.int64],
    labels: NDArray[np.bool_],
) -> float:
    """The AUC of one fact alone: whether a row's value is absent from its list, in it, or its first or last element.

    ``ids`` [n], below 0 where the value is missing, and ``values`` number the same values. A list that was written
    after the outcome often ends, or begins, with the item that was shown.
    """
    lengths = np.diff(offsets)
    rows = np.repeat(np.arange(len(ids)), lengths)
    places = np.bincount(rows[values == ids[rows]], minlength=len(ids)).clip(max=1)
    some = lengths > 0
    for place, at in ((2, offsets[:-1]), (4, offsets[1:] - 1)):
        places[some] += place * (values[at[some]] == ids[some])
    return auc_of_ids(np.where(ids < 0, 0, places), labels)


def auc_of_lists(
    values: NDArray[np.int32] | NDArray[np.int64],
    offsets: NDArray[np.int32] | NDArray[np.int64],
    labels: NDArray[np.bool_],
) -> float:
    """The AUC of a list column alone, by its length, its first or its last element, whichever ranks best.

    ``values`` are of at least 0.
    """
    lengths = np.diff(offsets)
    some = lengths > 0
    aucs = [auc_of(lengths.astype(np.float64), labels)]
    for at in (offsets[:-1], offsets[1:] - 1):
        ids = np.zeros(len(lengths), np.int64)
        ids[some] = values[at[some]] + 1
        aucs.append(auc_of_ids(ids, labels))
    return max((auc for auc in aucs if not math.isnan(auc)), key=lambda auc: abs(auc - 0.5), default=math.nan)


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
