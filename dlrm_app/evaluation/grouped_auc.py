"""AUC within groups of rows, as those of one user or one slot: what ranking inside a group is worth."""

import math

import torch

from dlrm_app.distributed.collectives import all_to_all, num_ranks, sum_in_rank_order
from dlrm_app.evaluation.ranking import CHUNK, doubled_wins, sort

LOWEST = -(1 << 31)


def grouped_auc(logits: torch.Tensor, labels: torch.Tensor, groups: torch.Tensor) -> float:
    """The mean of the groups' AUCs, each weighted by its rows; groups with rows of one class are left out.

    GAUC of Zhu et al. 2017, "Optimized cost per click in Taobao display advertising", with all rows as weights.
    ``logits`` [n] float32 without NaN, ``labels`` [n] bool, ``groups`` [n] int32 ids of at least 0. With a process
    group every rank gives its own rows and gets the same value. A group's rows meet on one rank, so one that
    holds most of all rows costs that rank its memory: about 40 bytes a row. nan where every group is left out.
    """
    keys = _keys(logits, groups)
    positives, negatives = (sort(_own_groups(keys[chosen])) for chosen in (labels, ~labels))
    num_rows, weighted = _sum_groups(positives, negatives)
    sums = sum_in_rank_order(torch.stack([num_rows, weighted]))
    return float(sums[1] / sums[0]) if sums[0] else math.nan


def _keys(logits: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """[n] int64 that sort by group, then by logit; equal where both are."""
    bits = (logits + 0.0).view(torch.int32)  # + 0.0: the two zeros are equal, their bits are not
    rising = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # floats below 0 have bits that fall as they rise
    return (groups.long() << 32) + (rising.long() - LOWEST)


def _own_groups(keys: torch.Tensor) -> torch.Tensor:
    """The keys of all ranks whose groups this rank measures."""
    if num_ranks() == 1:
        return keys
    owner = (keys >> 32) % num_ranks()
    parts = [keys[owner == rank] for rank in range(num_ranks())]
    sizes = torch.tensor([part.numel() for part in parts], device=keys.device)
    return all_to_all(torch.cat(parts), sizes)[0]


def _sum_groups(positives: torch.Tensor, negatives: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, sum of rows times AUC), float64, over this rank's groups that have both classes. Keys sorted."""
    groups, num_positives = torch.unique_consecutive(positives >> 32, return_counts=True)
    first = torch.searchsorted(negatives, groups << 32)
    num_negatives = torch.searchsorted(negatives, (groups << 32) + 0xFFFFFFFF, right=True) - first
    ends = num_positives.cumsum(0)
    # int64 running sums: a group's wins are a difference of two, exact
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
