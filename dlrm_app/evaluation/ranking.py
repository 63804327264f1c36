"""Ranking metrics, exact and over all ranks: ROC AUC, average precision, and AUC within groups of rows.

Rows may have weights; a pair of rows then counts by the product of its weights, added up in float64. They need the
sorted scores of both classes; each rank holds one range of scores.
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
"""Scores searched at a time; limits the memory of their int64 positions."""


@dataclass(frozen=True)
class Ranking:
    """This rank's range of the scores of all ranks, each class sorted. A later rank's scores are higher.

    ``counts`` [R, 2] int64: the positives and negatives in every rank's range; ``weights`` [R, 2]: those numbers, or
    the sums of their weights. ``running``, if rows have weights: the sums of the weights of the first 0, 1, … positives
    and negatives, float64.
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
            (scores, order), its_weights = (
                all_to_all(scores, sizes)[0].sort(),
                all_to_all(its_weights, sizes)[0],
            )
            its_weights = its_weights[order]
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
    """R - 1 scores, the same on every rank, that cut all rows into R ranges of about equal size."""
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
    """The number of ``scores`` (sorted) that fall into each rank's range, [R]."""
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


LOWEST = -(1 << 31)


def grouped_auc(rows: ScoredRows, groups: torch.Tensor) -> float:
    """The mean of the groups' AUCs, weighted by their numbers of rows; groups with one class are left out.

    GAUC of Zhu et al. 2017, "Optimized cost per click in Taobao display advertising", weighted by rows, whose logits
    are not NaN. ``groups`` [n]: int32 ids of at least 0, or int64 keys of raw values, where rows with MISSING_KEY are
    left out. With a process group every rank passes its own rows and gets the same value. A group's rows go to one
    rank, so a group that holds most of all rows needs much memory there: about 40 bytes a row, 60 with keys. nan if
    every group is left out. If rows have weights, the AUCs are weighted, and a group counts by the sum of its weights.
    """
    if groups.dtype == torch.int64:
        rows, groups = _numbered(rows, groups)
    keys, classes = _keys(rows.logits, groups), (rows.labels, ~rows.labels)
    if rows.is_weighted:
        pairs = [_sorted(*_own_groups(keys[chosen], rows.weights[chosen])) for chosen in classes]
        num_rows, weighted = _sum_weighted_groups(*pairs)
    else:
        num_rows, weighted = _sum_groups(*(sort(_own_groups(keys[chosen])[0]) for chosen in classes))
    sums = sum_in_rank_order(torch.stack([num_rows, weighted]))
    return float(sums[1] / sums[0]) if sums[0] else math.nan


MISSING_KEY = -(1 << 63)
"""The key of a missing value, as int64."""


def _numbered(rows: ScoredRows, keys: torch.Tensor) -> tuple[ScoredRows, torch.Tensor]:
    """The rows that have a key, those of one key on one rank. Keys become int32 ids, by which ``_own_groups``
    leaves the rows there.
    """
    rows, keys = rows[keys != MISSING_KEY], keys[keys != MISSING_KEY]
    if num_ranks() > 1:
        owner = keys % num_ranks()
        order = owner.argsort(stable=True)
        sizes = torch.bincount(owner, minlength=num_ranks())
        rows = rows[order]
        keys, logits, labels = (
            all_to_all(part, sizes)[0] for part in (keys[order], rows.logits, rows.labels.to(torch.uint8))
        )
        sent = ScoredRows.unweighted(logits, labels.bool())
        rows = (
            replace(sent, weights=all_to_all(rows.weights, sizes)[0], is_weighted=True)
            if rows.is_weighted
            else sent
        )
    ids = torch.unique(keys, return_inverse=True)[1] * num_ranks() + current_rank()
    return rows, ids.to(torch.int32)


def _keys(logits: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Keys, int64 [n], that sort by group, then by logit; equal only if both are."""
    bits = (logits + 0.0).view(torch.int32)  # + 0.0: turns -0.0 into 0.0, which is equal but has other bits
    rising = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # the bits of negative floats run backwards
    return (groups.long() << 32) + (rising.long() - LOWEST)


def _own_groups(*columns: torch.Tensor) -> list[torch.Tensor]:
    """The rows, from all ranks, of the groups that this rank measures. ``columns``: their keys first."""
    if num_ranks() == 1:
        return [*columns]
    owner = (columns[0] >> 32) % num_ranks()
    owned = [owner == rank for rank in range(num_ranks())]
    sizes = torch.tensor([int(rows.sum()) for rows in owned], device=owner.device)
    return [all_to_all(torch.cat([column[rows] for rows in owned]), sizes)[0] for column in columns]


def _sorted(keys: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    keys, order = keys.sort()
    return keys, weights[order]


def _sum_weighted_groups(
    positives: tuple[torch.Tensor, torch.Tensor], negatives: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """``_sum_groups`` of (keys, weights), where rows and pairs count by their weights."""
    (keys, weights), (others, of_others) = positives, negatives
    if not keys.numel():
        none = weights.new_zeros((), dtype=torch.float64)
        return none, none
    groups, counts = torch.unique_consecutive(keys >> 32, return_counts=True)
    running = running_sums(of_others)
    first = running[torch.searchsorted(others, groups << 32)]
    below = running[torch.searchsorted(others, (groups << 32) + 0xFFFFFFFF, right=True)] - first
    above = torch.segment_reduce(weights.double(), "sum", lengths=counts)
    won = [doubled_wins(others, some, running) for some in torch.split(keys, CHUNK)]
    doubled = weights * (torch.cat(won) - 2 * first.repeat_interleave(counts))
    wins = torch.segment_reduce(doubled, "sum", lengths=counts)
    has_both = above * below > 0
    rows = (above + below)[has_both]
    return rows.sum(), (rows * wins[has_both] / (2 * above * below)[has_both]).sum()


def _sum_groups(positives: torch.Tensor, negatives: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, sum of rows times AUC), float64, over this rank's groups with both classes. The keys must be sorted."""
    groups, num_positives = torch.unique_consecutive(positives >> 32, return_counts=True)
    first = torch.searchsorted(negatives, groups << 32)
    num_negatives = torch.searchsorted(negatives, (groups << 32) + 0xFFFFFFFF, right=True) - first
    ends = num_positives.cumsum(0)
    # running sums in int64, so that a group's wins, the difference of two, are exact
    wins = torch.zeros(positives.numel() + 1, dtype=torch.int64, device=positives.device)
    for start in range(0, positives.numel(), CHUNK):
        some = positives[start : start + CHUNK]
        wins[start + 1 : start + 1 + some.numel()] = doubled_wins(negatives, some)
    wins = wins.cumsum(0)
    doubled = wins[ends] - wins[ends - num_positives] - 2 * first * num_positives
    pairs = num_positives * num_negatives
    has_both = pairs > 0
    rows = (num_positives + num_negatives)[has_both].double()
    areas = doubled[has_both] / (2 * pairs[has_both]).double()
    return rows.sum(), (rows * areas).sum()
