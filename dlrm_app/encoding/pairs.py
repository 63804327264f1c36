"""Finds pairs of sparse columns that say more about a click than their parts: candidates for crosses."""

from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NUM_FOLDS = 5
_ROWS_PER_CELL = 20
"""A pair of columns with fewer rows per cell is skipped: most of its values would be rare."""
_MAX_COLUMNS = 24
_SWEEPS = 10
_RIDGE = 1.0
"""The precision of each effect's prior, which keeps effects of values without a click finite."""
_CHANCE = 5.0
"""Standard deviations of chi-squared above which a result is not explained by chance."""

CellCounts = NDArray[np.float64]


class Pair(NamedTuple):
    """Two columns. ``gain``: the decrease of the log loss on held-out rows, as a share of the entropy of the labels."""

    names: tuple[str, str]
    gain: float


def score_pairs(columns: Mapping[str, NDArray[np.uint64]], labels: NDArray[np.uint8]) -> list[Pair]:
    """The pairs of ``columns`` (keys [R], possibly missing) with a gain, the largest first; labels [R].

    The gain compares a logistic model with an effect for each cell of the two columns to one with an effect for each
    value of each, trained on four of five folds. The effects of cells shrink by their variance beyond chance, which is
    estimated, so that a pair without information gains nothing. With many columns, only the best single ones are
    paired.
    """
    rate = (labels.sum() + 0.5) / (len(labels) + 1)
    entropy = -rate * np.log(rate) - (1 - rate) * np.log(1 - rate)
    candidates: dict[str, tuple[NDArray[np.int64], int]] = {}
    for name, keys in columns.items():
        values, numbers = np.unique(keys, return_inverse=True)
        if 2 <= len(values) <= len(labels) // (2 * _ROWS_PER_CELL):
            candidates[name] = numbers, len(values)
    informative = sorted(candidates, key=lambda name: -_information(*candidates[name], labels))[:_MAX_COLUMNS]
    cells = folds_of_rows(len(labels)) * 2 + labels
    pairs = []
    for left, right in combinations([name for name in candidates if name in informative], 2):
        (a, num_a), (b, num_b) = candidates[left], candidates[right]
        if num_a * num_b * _ROWS_PER_CELL <= len(labels):
            shape = NUM_FOLDS, 2, num_a, num_b
            counts = np.bincount((cells * num_a + a) * num_b + b, minlength=int(np.prod(shape)))
            gain = _gain(counts.reshape(shape).astype(np.float64)) / (len(labels) * entropy)
            pairs.append(Pair((left, right), gain))
    return sorted((pair for pair in pairs if pair.gain > 0), key=lambda pair: -pair.gain)


def folds_of_rows(num_rows: int) -> NDArray[np.int64]:
    """The fold of each row, drawn at random, because values may repeat in any pattern."""
    return np.random.default_rng(0).integers(0, NUM_FOLDS, num_rows)


def _information(numbers: NDArray[np.int64], size: int, labels: NDArray[np.uint8]) -> float:
    """Chi-squared of a column and the labels, minus its expectation by chance."""
    rows, clicks = np.bincount(numbers, minlength=size), np.bincount(numbers, labels, size)
    rate = (labels.sum() + 0.5) / (len(labels) + 1)
    return float(((clicks - rows * rate) ** 2 / (rows * rate * (1 - rate))).sum() - size)


def _gain(counts: CellCounts) -> float:
    """The gain of a pair in nats, over all rows, from its counts [folds, labels, A, B]; 0 if chance explains it."""
    others, clicks = counts.sum(0)
    seen = int((others + clicks > 0).sum())
    freedom = max(seen - counts.shape[2] - counts.shape[3] + 1, 1)
    if _excess(others + clicks, clicks)[1] + seen - freedom < _CHANCE * np.sqrt(2 * freedom):
        return 0.0
    total = 0.0
    for others_here, clicks_here in counts:
        n, c = others + clicks - others_here - clicks_here, clicks - clicks_here
        logit, excess = _excess(n, c)
        p = _sigmoid(logit)
        variance = n * p * (1 - p)
        better = logit + (c - n * p) / (variance + variance.sum() / max(excess, 1e-9))
        total += float((clicks_here * (np.logaddexp(0, -logit) - np.logaddexp(0, -better))).sum())
        total += float((others_here * (np.logaddexp(0, logit) - np.logaddexp(0, better))).sum())
    return total


def _excess(n: CellCounts, c: CellCounts) -> tuple[CellCounts, float]:
    """Fits a model with an effect for each value by Newton steps.

    Returns (its logits [A, B], chi-squared minus the number of cells).
    """
    rate = (c.sum() + 0.5) / (n.sum() + 1)
    logit = np.full(n.shape, np.log(rate / (1 - rate)))
    effects = [np.zeros((n.shape[0], 1)), np.zeros((1, n.shape[1]))]
    for _ in range(_SWEEPS):
        for axis, effect in zip((1, 0), effects, strict=True):
            p = _sigmoid(logit)
            slope = (c - n * p).sum(axis, keepdims=True) - _RIDGE * effect
            step = slope / ((n * p * (1 - p)).sum(axis, keepdims=True) + _RIDGE)
            effect += step
            logit = logit + step
    p = _sigmoid(logit)
    seen = n > 0
    return logit, float(((c - n * p)[seen] ** 2 / (n * p * (1 - p))[seen]).sum() - seen.sum())


def _sigmoid(logit: CellCounts) -> CellCounts:
    return 1 / (1 + np.exp(-logit))
