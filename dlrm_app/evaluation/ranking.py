"""Ranking metrics, exact and over all ranks: ROC AUC and average precision.

Both need the sorted scores of both classes; each rank holds one range of scores. Rows may have weights; a pair of rows
then counts by the product of its weights, added up in float64.
"""

import math
from dataclasses import dataclass, replace

import torch

from dlrm_app.distributed.collectives import (
    all_gather_stacked,
    all_to_all,
    current_rank,
    num_ranks,
    sum_in_rank_order,
)
from dlrm_app.evaluation.scored_rows import ScoredRows

SAMPLES_PER_RANK = 1024
CHUNK = 1 << 20
"""Rows that are handled at a time; limits the memory of their int64 positions and float64 copies."""


@dataclass(frozen=True)
class Ranking:
    """This rank's range of the scores of all ranks, each class sorted. A later rank's scores are higher.

    ``counts`` [P, 2] int64: the positives and negatives in the range of each of P ranks.
    ``weights`` [P, 2]: those numbers, or the sums of their weights.
    ``running``, if rows have weights: the sums of the weights of the first 0, 1, … positives and negatives, float64.
    """

    positives: torch.Tensor
    negatives: torch.Tensor
    counts: torch.Tensor
    weights: torch.Tensor
    running: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def totals(self) -> tuple[float, float]:
        """Numbers, or weights, of positives and negatives of all ranks."""
        positives, negatives = self.weights.sum(0).tolist()
        return positives, negatives

    @property
    def below(self) -> tuple[float, float]:
        """Numbers, or weights, of positives and negatives that score below all of this rank's."""
        positives, negatives = self.weights[: current_rank()].sum(0).tolist()
        return positives, negatives

    @property
    def running_positives(self) -> torch.Tensor | None:
        """The running sums of the positives' weights, if rows have any."""
        return None if self.running is None else self.running[0]

    @property
    def running_negatives(self) -> torch.Tensor | None:
        """The running sums of the negatives' weights, if rows have any."""
        return None if self.running is None else self.running[1]


def without_weights(ranking: Ranking) -> Ranking:
    """The same ranking, where every row counts once."""
    return replace(ranking, running=None, weights=ranking.counts)


def rank_scores(rows: ScoredRows) -> Ranking:
    """Ranks rows whose logits are not NaN.

    With a process group every rank calls this with its own rows, any number of them. The ranks exchange scores by
    range of score, as in a sample sort: each sorts and holds about its share of all rows, or more if very
    many scores are equal, because equal ones go to one rank.
    """
    if rows.is_weighted:
        return _rank_weighted(rows)
    logits, labels = rows.logits, rows.labels
    positives, negatives = sort(logits[labels]), sort(logits[~labels])
    if num_ranks() > 1:
        splitters = find_splitters(logits)
        positives, negatives = (
            sort(all_to_all(scores, cut(scores, splitters))[0]) for scores in (positives, negatives)
        )
    counts = all_gather_stacked(torch.tensor([positives.numel(), negatives.numel()], device=logits.device))
    return Ranking(positives, negatives, counts, counts)


def _rank_weighted(rows: ScoredRows) -> Ranking:
    """``rank_scores`` of rows with weights, which follow their scores."""
    logits, labels, weights = rows.logits, rows.labels, rows.weights
    splitters = find_splitters(logits) if num_ranks() > 1 else None
    sorted_scores, running = [], []
    for chosen in (labels, ~labels):
        scores, order = logits[chosen].sort()
        its_weights = weights[chosen][order]
        if splitters is not None:
            sizes = cut(scores, splitters)
            scores, order = all_to_all(scores, sizes)[0].sort()
            its_weights = all_to_all(its_weights, sizes)[0][order]
        sorted_scores.append(scores)
        running.append(running_sums(its_weights))
    counts = torch.tensor([scores.numel() for scores in sorted_scores], device=logits.device)
    sums = torch.stack([sums[-1] for sums in running])
    gathered = all_gather_stacked(counts), all_gather_stacked(sums)
    return Ranking(sorted_scores[0], sorted_scores[1], *gathered, running=(running[0], running[1]))


def running_sums(weights: torch.Tensor) -> torch.Tensor:
    """The sums of the first 0, 1, … n of ``weights`` [n], float64 [n + 1]."""
    return torch.cat([weights.new_zeros(1, dtype=torch.float64), weights.double().cumsum(0)])


def sort(scores: torch.Tensor) -> torch.Tensor:
    """Sorts ``scores``; in place on CPU."""
    if scores.device.type != "cpu":
        return scores.sort().values
    # torch.sort also sorts int64 indices: 3 times the memory and 20 times the time of numpy's
    scores.numpy().sort()
    return scores


def find_splitters(logits: torch.Tensor) -> torch.Tensor:
    """P - 1 scores, the same on all P ranks, that cut all rows into P ranges of about equal size."""
    sample = torch.full((SAMPLES_PER_RANK,), float("nan"), device=logits.device)
    if logits.numel():
        indices = torch.linspace(0, logits.numel() - 1, SAMPLES_PER_RANK, dtype=torch.float64)
        sample = logits[indices.long().to(logits.device)]
    samples = all_gather_stacked(sample).flatten()
    samples = samples[~samples.isnan()].sort().values  # ranks without rows send nan
    if not samples.numel():
        return torch.zeros(num_ranks() - 1, device=logits.device)
    return samples[torch.arange(1, num_ranks(), device=logits.device) * samples.numel() // num_ranks()]


def cut(scores: torch.Tensor, splitters: torch.Tensor) -> torch.Tensor:
    """The number of ``scores`` (sorted) that fall into each rank's range, [P]."""
    cuts = torch.searchsorted(scores, splitters)
    return torch.tensor([0, *cuts.tolist(), scores.numel()], device=scores.device).diff()


def doubled_wins(
    others: torch.Tensor, scores: torch.Tensor, running: torch.Tensor | None = None
) -> torch.Tensor:
    """Counts for each of ``scores``, int64 [n]: 2 for every one of ``others`` (sorted) below it, and 1 for a tie.

    With ``running``, the running sums of the weights of ``others``: float64, these weights in place of 1.
    """
    low, high = torch.searchsorted(others, scores), torch.searchsorted(others, scores, right=True)
    return low + high if running is None else running[low] + running[high]


def roc_auc(ranking: Ranking) -> float:
    """The probability that a random positive scores above a random negative, a tie counting half.

    Computes the Mann-Whitney statistic (Hanley & McNeil 1982) in int64, so that only the last division rounds
    (positives times negatives must stay below 2^62). The same on every rank; nan if all rows have one class.
    """
    if ranking.running is not None:
        return _weighted_auc(ranking, *ranking.running)
    wins = 2 * ranking.below[1] * ranking.positives.numel()
    for some in torch.split(ranking.positives, CHUNK):
        wins += int(doubled_wins(ranking.negatives, some).sum())
    wins = int(sum_in_rank_order(torch.tensor(wins, device=ranking.positives.device)))
    num_positives, num_negatives = ranking.totals
    pairs = num_positives * num_negatives
    return wins / (2 * pairs) if pairs else math.nan


def _weighted_auc(ranking: Ranking, of_positives: torch.Tensor, of_negatives: torch.Tensor) -> float:
    """``roc_auc`` where a pair counts by the product of its weights. The arguments are the running sums of weights."""
    wins = 2 * ranking.below[1] * of_positives[-1]
    pieces = torch.split(ranking.positives, CHUNK), torch.split(of_positives.diff(), CHUNK)
    for some, weights in zip(*pieces, strict=True):
        wins += (weights * doubled_wins(ranking.negatives, some, of_negatives)).sum()
    won = float(sum_in_rank_order(wins))
    positives, negatives = ranking.totals
    return won / (2 * positives * negatives) if positives * negatives else math.nan


def average_precision(ranking: Ranking) -> float:
    """The area under the precision-recall curve as a sum of steps: the mean, over all positives, of the
    precision among the rows that score at least as high, as in scikit-learn's average_precision_score. The
    same on every rank; nan without positives.
    """
    if ranking.running is not None:
        return _weighted_precision(ranking, *ranking.running)
    num_positives, num_negatives = ranking.totals
    positives_up = num_positives - ranking.below[0]
    negatives_up = num_negatives - ranking.below[1]
    precision = torch.zeros((), dtype=torch.float64, device=ranking.positives.device)
    for some in torch.split(ranking.positives, CHUNK):
        hits = positives_up - torch.searchsorted(ranking.positives, some)
        misses = negatives_up - torch.searchsorted(ranking.negatives, some)
        precision += (hits.double() / (hits + misses)).sum()
    return float(sum_in_rank_order(precision)) / num_positives if num_positives else math.nan


def _weighted_precision(ranking: Ranking, of_positives: torch.Tensor, of_negatives: torch.Tensor) -> float:
    """``average_precision`` of rows with weights. The arguments are the running sums of weights."""
    (positives, negatives), below = ranking.totals, ranking.below
    precision = torch.zeros((), dtype=torch.float64, device=ranking.positives.device)
    pieces = torch.split(ranking.positives, CHUNK), torch.split(of_positives.diff(), CHUNK)
    for some, weights in zip(*pieces, strict=True):
        hits = positives - below[0] - of_positives[torch.searchsorted(ranking.positives, some)]
        misses = negatives - below[1] - of_negatives[torch.searchsorted(ranking.negatives, some)]
        precision += (weights * torch.where(weights > 0, hits / (hits + misses), 0.0)).sum()
    return float(sum_in_rank_order(precision)) / positives if positives else math.nan
