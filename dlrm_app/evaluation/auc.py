"""The exact areas under the ROC and the precision-recall curve."""

import math

import torch

from dlrm_app.distributed.collectives import sum_in_rank_order
from dlrm_app.evaluation.ranking import CHUNK, Ranking, doubled_wins


def roc_auc(ranking: Ranking) -> float:
    """The probability that a random positive scores above a random negative, a tie counting half.

    The Mann-Whitney statistic (Hanley & McNeil 1982) counted in int64, so that only the last division rounds
    (positives times negatives must stay below 2^62). The same on every rank; nan when all rows are of one class.
    """
    wins = 2 * ranking.below[1] * ranking.positives.numel()
    for some in torch.split(ranking.positives, CHUNK):
        wins += int(doubled_wins(ranking.negatives, some).sum())
    wins = int(sum_in_rank_order(torch.tensor(wins, device=ranking.positives.device)))
    num_positives, num_negatives = ranking.totals
    pairs = num_positives * num_negatives
    return wins / (2 * pairs) if pairs else math.nan


def average_precision(ranking: Ranking) -> float:
    """The area under the precision-recall curve as a sum of steps: the mean over all positives of the precision
    among the rows that score no lower, as scikit-learn's average_precision_score. The same on every rank; nan
    without positives.
    """
    num_positives, num_negatives = ranking.totals
    positives_up = num_positives - ranking.below[0]
    negatives_up = num_negatives - ranking.below[1]
    precision = torch.zeros((), dtype=torch.float64, device=ranking.positives.device)
    for some in torch.split(ranking.positives, CHUNK):
        hits = positives_up - torch.searchsorted(ranking.positives, some)
        misses = negatives_up - torch.searchsorted(ranking.negatives, some)
        precision += (hits.double() / (hits + misses)).sum()
    return float(sum_in_rank_order(precision)) / num_positives if num_positives else math.nan
