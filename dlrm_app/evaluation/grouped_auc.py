"""GAUC: the AUC within groups of rows, such as users, exact and over all ranks.

Every group is measured on one rank. Rows may have weights, as in ``ranking``.
"""

import math
from dataclasses import replace

import torch

from dlrm_app.distributed.collectives import all_to_all, current_rank, num_ranks, sum_in_rank_order
from dlrm_app.evaluation.ranking import CHUNK, doubled_wins, running_sums, sort
from dlrm_app.evaluation.scored_rows import ScoredRows

MISSING_KEY = -(1 << 63)
"""The key of a missing value, as int64."""
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
