"""The planted truth: a logit over dense values, ids, pairs of ids, and histories, scaled to the requested AUC.

logit = bias + smooth curves of log1p(value) + an effect for each frequent id + dot products of the latent
vectors of ids in a few columns (+ the parts of ``histories``). Ids beyond the ``NUM_TELLING`` most frequent have no
effect: no model could learn one from a few rows, and the best score would then be known but out of reach.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrm_app.evaluation.column_auc import auc_of_counts
from dlrm_app.kernels.compiled import njit
from dlrm_app.tools.synthetic.catalogue import SHARE as CATALOGUE_SHARE
from dlrm_app.tools.synthetic.catalogue import Catalogue
from dlrm_app.tools.synthetic.distribution import NUM_DENSE, NUM_SPARSE, Shape, draw_rows
from dlrm_app.tools.synthetic.histories import ITEM, Histories

NUM_TELLING = 64
COLUMN_DECAY = 0.5  # the k-th strongest column has this to the power of k as its weight
PAIRED_COLUMNS = (8, 13, 16, 22)  # few ids each, none missing
NUM_PAIRING = 16  # ids of a paired column that have a latent vector
LATENT_DIM = 2
SHARES = (0.40, 0.54, 0.06)  # shares of the logit's variance: dense values, ids, pairs
WITH_HISTORIES = (0.13, 0.20, 0.02, 0.50, 0.15)  # the same and those of histories: last, then bought items
PILOT_ROWS = 1 << 17
PILOT_START = 1 << 40  # number of the pilot sample's first row, of histories: no log goes that far


class Signal(NamedTuple):
    """The true model. An id's row in ``effects`` [F, NUM_TELLING + 2] and ``latent`` [F', NUM_PAIRING + 1, L] is its
    rank; the row after the ranks is for all rarer ids (zero), the last row of ``effects`` for a missing id.

    ``curves`` [N, 2]: weights of tanh(t) and exp(-t²) with t = (log1p(value) - location) / width. ``curve_spread``
    [N] and ``effect_spread`` [F]: the standard deviations that a column's weights were drawn with.
    The logit is ``bias`` plus the three parts, those of histories and of a catalogue if the log has these, times
    ``weights``.
    """

    curves: NDArray[np.float64]
    effects: NDArray[np.float64]
    latent: NDArray[np.float64]
    weights: NDArray[np.float64]
    bias: float
    curve_spread: NDArray[np.float64]
    effect_spread: NDArray[np.float64]

    def logits(
        self,
        shape: Shape,
        values: NDArray[np.int64],
        ranks: NDArray[np.int64],
        more: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """The true log-odds [B] of rows with dense ``values`` [B, N] and ``ranks`` of ids [B, F].

        ``more`` [B, M]: further parts, of histories (``histories.parts``), then of a catalogue (``Catalogue.part``).
        """
        return self.bias + self.parts(shape, values, ranks, more) @ self.weights

    def parts(
        self,
        shape: Shape,
        values: NDArray[np.int64],
        ranks: NDArray[np.int64],
        more: NDArray[np.float64] | None,
    ) -> NDArray[np.float64]:
        """The parts of the logits [B, 3 + M], before weights."""
        parts: NDArray[np.float64] = _parts(self, shape, values, ranks)
        return parts if more is None else np.hstack([parts, more])


def plant_signal(
    shape: Shape,
    key: Sequence[int],
    auc: float,
    click_rate: float,
    given: Signal | None = None,
    histories: Histories | None = None,
    catalogue: Catalogue | None = None,
) -> Signal:
    """The true model of ``key`` [2], scaled so that a pilot sample has about this ``auc`` and ``click_rate``.

    ``given``: the true model of another label; the sample has only rows with that label. ``histories`` and
    ``catalogue``: those of the rows.
    """
    random = np.random.Generator(np.random.Philox(key=key))
    curve_spread = _strengths(random, NUM_DENSE)
    curves = curve_spread[:, None] * random.normal(size=(NUM_DENSE, 2))
    effect_spread = _strengths(random, NUM_SPARSE)
    effects = effect_spread[:, None] * random.normal(size=(NUM_SPARSE, NUM_TELLING + 2))
    effects[:, NUM_TELLING] = 0.0
    latent = random.normal(size=(len(PAIRED_COLUMNS), NUM_PAIRING + 1, LATENT_DIM))
    latent[:, NUM_PAIRING] = 0.0
    shares: tuple[float, ...] = SHARES if histories is None else WITH_HISTORIES
    if catalogue is not None:
        shares = (*(share * (1 - CATALOGUE_SHARE) for share in shares), CATALOGUE_SHARE)
    unscaled = Signal(curves, effects, latent, np.ones(len(shares)), 0.0, curve_spread, effect_spread)
    values, ranks, draws = draw_rows(shape, int(random.integers(2**63)), 0, PILOT_ROWS)
    found = []
    if histories is not None:
        found.append(histories.parts(ranks[:, ITEM], histories.lists(PILOT_START, PILOT_ROWS)))
    if catalogue is not None:
        found.append(catalogue.part(catalogue.items(PILOT_START, PILOT_ROWS), ranks))
    more = np.hstack(found) if found else None
    parts = unscaled.parts(shape, values, ranks, more)
    if given is not None:
        parts = parts[draws < probability(given.logits(shape, values, ranks, more))]
    spread = parts.std(axis=0)
    weights = np.sqrt(shares) / np.where(spread > 0, spread, 1.0)  # a column of one id has no spread
    scale, bias = _fit(np.sort(parts @ weights), auc, click_rate)
    return unscaled._replace(weights=scale * weights, bias=bias)


def _strengths(random: np.random.Generator, num_columns: int) -> NDArray[np.float64]:
    return COLUMN_DECAY ** random.permutation(num_columns).astype(np.float64)


def _fit(logits: NDArray[np.float64], auc: float, click_rate: float) -> tuple[float, float]:
    """Finds by bisection the scale and bias that give sorted ``logits`` the expected ``auc`` and ``click_rate``."""
    low, high = 0.0, 64.0
    bias = 0.0
    for _ in range(40):
        scale = (low + high) / 2
        bias = _fit_bias(scale * logits, click_rate, bias)
        if expected_auc(probability(scale * logits + bias)) < auc:
            low = scale
        else:
            high = scale
    return scale, bias


def _fit_bias(logits: NDArray[np.float64], click_rate: float, bias: float) -> float:
    for _ in range(50):  # Newton's steps, limited in length
        clicks = probability(logits + bias)
        step = (click_rate - clicks.mean()) / max(float((clicks * (1 - clicks)).mean()), 1e-3)
        bias += float(np.clip(step, -2.0, 2.0))
        if abs(step) < 1e-10:
            break
    return bias


def probability(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 / (1 + exp(-logit))."""
    return 1.0 / (1.0 + np.exp(-logits))


@njit(nogil=True, cache=True)
def _parts(signal, shape, values, ranks):  # type: ignore[no-untyped-def]  # compiled
    """The parts of the logit from dense values, ids and pairs, [B, 3], before weights."""
    num_rows = len(values)
    parts = np.zeros((num_rows, 3))
    total = np.empty(LATENT_DIM)
    for i in range(num_rows):
        for c in range(NUM_DENSE):
            t = (np.log1p(max(values[i, c], 0)) - shape.location[c]) / (2.0 * shape.scale[c])
            parts[i, 0] += signal.curves[c, 0] * np.tanh(t) + signal.curves[c, 1] * np.exp(-t * t)
        for c in range(NUM_SPARSE):
            rank = ranks[i, c]
            parts[i, 1] += signal.effects[c, NUM_TELLING + 1 if rank < 0 else min(rank, NUM_TELLING)]
        # the sum over pairs of dot products is (|sum|² - sum of |.|²) / 2 (Rendle 2010)
        total[:] = 0.0
        squares = 0.0
        for p, c in enumerate(PAIRED_COLUMNS):
            rank = ranks[i, c]
            for d in range(LATENT_DIM):
                x = signal.latent[p, NUM_PAIRING if rank < 0 else min(rank, NUM_PAIRING), d]
                total[d] += x
                squares += x * x
        squared_sum = 0.0
        for d in range(LATENT_DIM):  # numba's np.dot needs scipy, which users may not have
            squared_sum += total[d] * total[d]
        parts[i, 2] = (squared_sum - squares) / 2.0
    return parts


_NUM_BINS = 1 << 20
_FIXED = 1 << 32  # log loss is summed in units of 2^-32: sums of integers do not depend on the order


@dataclass(frozen=True)
class BestScores:
    """``auc`` and ``logloss`` of the true model on the drawn labels; ``auc`` is None if all labels have one class."""

    auc: float | None
    logloss: float
    rows: int
    positives: int


class Tally:
    """Adds up blocks of true probabilities and labels, in constant memory and regardless of their order.

    Probabilities are counted in 2^20 bins of equal width; those of one bin are ties. On a million rows
    this changes the AUC by less than 1e-6.
    """

    def __init__(self) -> None:
        self._counts = np.zeros((2, _NUM_BINS), dtype=np.int64)
        self._loss = 0

    def add(self, probabilities: NDArray[np.float64], labels: NDArray[np.uint8]) -> None:
        """Adds rows with true ``probabilities`` [B] and ``labels`` [B], 0 or 1."""
        bins = np.minimum((probabilities * _NUM_BINS).astype(np.int64), _NUM_BINS - 1)
        for label in (0, 1):
            np.add.at(self._counts[label], bins[labels == label], 1)
        loss = np.where(labels == 1, -np.log(probabilities), -np.log1p(-probabilities))
        self._loss += int((loss * _FIXED).astype(np.int64).sum())

    def best(self) -> BestScores:
        """The scores of all added rows; there must be at least one row."""
        negatives, positives = self._counts
        rows = int(self._counts.sum())
        auc = auc_of_counts(positives.astype(np.float64), negatives.astype(np.float64))
        defined = None if math.isnan(auc) else auc
        return BestScores(defined, self._loss / _FIXED / rows, rows, int(positives.sum()))


def expected_auc(probabilities: NDArray[np.float64]) -> float:
    """The expected AUC of sorted true ``probabilities`` [B], over labels drawn from them."""
    return auc_of_counts(probabilities, 1.0 - probabilities)
