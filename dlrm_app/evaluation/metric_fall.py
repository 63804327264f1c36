"""How much worse a metric becomes when the same rows are scored in other ways, paired, with its interval.

Positive means worse, also where lower is better: a fall of the AUC, a rise of the log loss. The other ways are K
shuffles of a column, whose mean counts. A row is one independent draw; for metrics of groups a group is one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from dlrm_app.config.metrics import split_name
from dlrm_app.distributed.collectives import all_gather_objects, sum_in_rank_order
from dlrm_app.evaluation.group_ranking import group_values
from dlrm_app.evaluation.grouped_auc import collect_groups
from dlrm_app.evaluation.intervals import auc_covariance, interval_of, mean_interval
from dlrm_app.evaluation.metrics import entropy
from dlrm_app.evaluation.result import Interval
from dlrm_app.evaluation.scored_rows import ScoredRows

_SHARES = (-1.0, 1.0)
"""The bounds of a difference of two numbers between 0 and 1."""


class _Fall(Protocol):
    def __call__(
        self, rows: ScoredRows, others: Sequence[torch.Tensor], confidence: float, /
    ) -> Interval: ...


@dataclass(frozen=True, eq=False)
class MetricFall:
    """Measures the metric ``name``, such as ``ndcg@10``. ``keys`` [n]: the groups of the rows, for metrics of groups."""

    name: str
    keys: torch.Tensor | None = None

    def between(self, rows: ScoredRows, others: Sequence[torch.Tensor], confidence: float) -> Interval:
        """The metric of ``rows`` against its mean over K ``others``, logits [n] of the same rows.

        NaN if a logit is. Every rank passes its own rows; all get the same result.
        """
        has_nan = any(bool(logits.isnan().any()) for logits in (rows.logits, *others))
        if any(all_gather_objects(has_nan)):
            return Interval(*[math.nan] * 4)
        if (fall := FALLS.get(self.name)) is not None:
            return fall(rows, others, confidence)
        assert self.keys is not None
        return _group_fall(self.name, self.keys, rows, others, confidence)


def _auc_fall(rows: ScoredRows, others: Sequence[torch.Tensor], confidence: float) -> Interval:
    """By DeLong's covariance of all K + 1 AUCs."""
    aucs, covariance = auc_covariance([rows, *(replace(rows, logits=logits) for logits in others)])
    factors = torch.tensor([1.0, *([-1 / len(others)] * len(others))], dtype=torch.float64)
    value = float(factors @ torch.tensor(aucs, dtype=torch.float64))
    spread = float(factors @ torch.tensor(covariance, dtype=torch.float64) @ factors)
    return interval_of(value, spread, confidence, _SHARES)


def _logloss_rise(rows: ScoredRows, others: Sequence[torch.Tensor], confidence: float) -> Interval:
    """The mean of each row's change."""

    def losses(logits: torch.Tensor) -> torch.Tensor:
        return binary_cross_entropy_with_logits(logits.double(), rows.labels.double(), reduction="none")

    change = torch.stack([losses(logits) for logits in others]).mean(0) - losses(rows.logits)
    return mean_interval([change], [rows.weights.double()], confidence, (-math.inf, math.inf))


def _ne_rise(rows: ScoredRows, others: Sequence[torch.Tensor], confidence: float) -> Interval:
    """The rise of the log loss over the entropy of the labels, which no shuffle changes."""
    weights = rows.weights.double()
    total, positives = sum_in_rank_order(torch.stack([weights.sum(), weights[rows.labels].sum()])).tolist()
    constant = entropy(positives / total) if total else math.nan
    rise = _logloss_rise(rows, others, confidence)
    scaled = [
        each / constant if constant else math.nan
        for each in (rise.value, rise.standard_error, rise.low, rise.high)
    ]
    return Interval(*scaled)


def _pr_auc_fall(rows: ScoredRows, others: Sequence[torch.Tensor], confidence: float) -> Interval:
    """By the influence of each row on the average precision (the infinitesimal jackknife: Jaeckel 1972)."""
    own = ScoredRows(rows.logits.cpu(), rows.labels.cpu(), rows.weights.contiguous().cpu())
    gathered = all_gather_objects((own, [logits.cpu() for logits in others]))
    whole = ScoredRows.joined([part for part, _ in gathered])
    value, influence = precision_influences(whole)
    for parts in zip(*(logits for _, logits in gathered), strict=True):
        other, of_other = precision_influences(replace(whole, logits=torch.cat(parts)))
        value, influence = value - other / len(others), influence - of_other / len(others)
    count = int((whole.weights > 0).sum())
    spread = float((whole.weights.double() * influence).square().sum())
    return interval_of(value, spread * count / (count - 1) if count > 1 else math.nan, confidence, _SHARES)


def precision_influences(rows: ScoredRows) -> tuple[float, torch.Tensor]:
    """The average precision of ``rows``, all on this rank, and its derivative [n] by each row's weight.

    With A and B the weights of positives and of all rows that score at least as high as row i, and P that of all
    positives, it is the sum of w A / B / P over the positives.
    """
    weights, positive = rows.weights.double(), rows.labels.double()
    scores, place = torch.unique(rows.logits, return_inverse=True)
    zeros = weights.new_zeros(len(scores))
    clicks = zeros.index_add(0, place, weights * positive)  # by score
    everything = zeros.index_add(0, place, weights)
    above, above_all = (each.flip(0).cumsum(0).flip(0) for each in (clicks, everything))
    total = clicks.sum()
    precision = torch.where(above_all > 0, above / above_all, 0.0)
    value = (clicks * precision).sum() / total
    # a row is among those at least as high of all positives that score at most as high
    gained = torch.where(above_all > 0, clicks / above_all, 0.0).cumsum(0)
    lost = torch.where(above_all > 0, clicks * precision / above_all, 0.0).cumsum(0)
    own = positive * (precision[place] - value) + positive * gained[place] - lost[place]
    return float(value), own / total


def _group_fall(
    name: str, keys: torch.Tensor, rows: ScoredRows, others: Sequence[torch.Tensor], confidence: float
) -> Interval:
    """The weighted mean of each group's change."""
    k = split_name(name)[1]

    def values(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = group_values(collect_groups(replace(rows, logits=logits), keys), [k] if k else [])[name]
        return found.values, found.weights

    plain, weights = values(rows.logits)
    change = plain - torch.stack([values(logits)[0] for logits in others]).mean(0)
    return mean_interval([change], [weights], confidence, _SHARES)


FALLS: Mapping[str, _Fall] = {
    "auc": _auc_fall,
    "pr_auc": _pr_auc_fall,
    "logloss": _logloss_rise,
    "ne": _ne_rise,
}
"""Name, as in config.metrics.METRICS → how its fall is measured; metrics of groups have one way for all."""
