"""Rows by group, such as users or requests, and GAUC: the AUC within groups; exact and over all ranks.

Every group is measured on one rank. Rows may have weights, as in ``ranking``.
"""

import math
from dataclasses import dataclass, replace

import torch

from dlrm_app.distributed.collectives import all_to_all, current_rank, num_ranks, sum_in_rank_order
from dlrm_app.evaluation.ranking import CHUNK, doubled_wins, running_sums, sort
from dlrm_app.evaluation.scored_rows import ScoredRows

MISSING_KEY = -(1 << 63)
"""The key of a missing value, as int64."""
LOWEST = -(1 << 31)


@dataclass(frozen=True, eq=False)
class GroupedRows:
    """The rows of the groups that this rank measures, by class.

    ``positives``, ``negatives``: keys, int64, sorted: by group, then by score; equal only if both are. ``weights``:
    those of the positives and of the negatives; None if all rows count once.
    """

    positives: torch.Tensor
    negatives: torch.Tensor
    weights: tuple[torch.Tensor, torch.Tensor] | None = None


@dataclass(frozen=True, eq=False)
class GroupValues:
    """A metric of this rank's groups: ``values`` [G] and the ``weights`` [G] by which they count, float64."""

    values: torch.Tensor
    weights: torch.Tensor

    def mean(self) -> float:
        """The mean over the groups of all ranks; nan without groups. Every rank must call it."""
        sums = torch.stack([self.weights.sum(), (self.weights * self.values).sum()])
        total, weighted = sum_in_rank_order(sums).tolist()
        return weighted / total if total else math.nan


def collect_groups(rows: ScoredRows, groups: torch.Tensor) -> GroupedRows:
    """The groups of ``rows``, whose logits are not NaN, each on one rank. Rows of weight 0 are left out.

    ``groups`` [n]: int32 ids of at least 0, or int64 keys of raw values, where rows with MISSING_KEY are left out.
    With a process group every rank passes its own rows. A group's rows go to one rank, so a group that holds most of
    all rows needs much memory there: about 40 bytes a row, 60 with keys.
    """
    if rows.is_weighted and not bool((counts := rows.weights > 0).all()):
        rows, groups = rows[counts], groups[counts]
    if groups.dtype == torch.int64:
        rows, groups = _numbered(rows, groups)
    keys, classes = _keys(rows.logits, groups), (rows.labels, ~rows.labels)
    if not rows.is_weighted:
        own, others = (sort(_own_groups(keys[chosen])[0]) for chosen in classes)
        return GroupedRows(own, others)
    (positives, of_positives), (negatives, of_negatives) = (
        _sorted(*_own_groups(keys[chosen], rows.weights[chosen])) for chosen in classes
    )
    return GroupedRows(positives, negatives, (of_positives, of_negatives))


def grouped_auc(grouped: GroupedRows) -> GroupValues:
    """The AUC of every group that has both classes, which counts by its number of rows or the sum of their weights.

    Their mean is the GAUC of Zhu et al. 2017, "Optimized cost per click in Taobao display advertising".
    """
    if grouped.weights is None:
        return _aucs(grouped.positives, grouped.negatives)
    positives, negatives = zip((grouped.positives, grouped.negatives), grouped.weights, strict=True)
    return _weighted_aucs(positives, negatives)


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


def _weighted_aucs(
    positives: tuple[torch.Tensor, torch.Tensor], negatives: tuple[torch.Tensor, torch.Tensor]
) -> GroupValues:
    """``_aucs`` of (keys, weights), where rows and pairs count by their weights."""
    (keys, weights), (others, of_others) = positives, negatives
    if not keys.numel():
        none = weights.new_zeros(0, dtype=torch.float64)
        return GroupValues(none, none)
    groups, counts = torch.unique_consecutive(keys >> 32, return_counts=True)
    running = running_sums(of_others)
    first = running[torch.searchsorted(others, groups << 32)]
    below = running[torch.searchsorted(others, (groups << 32) + 0xFFFFFFFF, right=True)] - first
    above = torch.segment_reduce(weights.double(), "sum", lengths=counts)
    won = [doubled_wins(others, some, running) for some in torch.split(keys, CHUNK)]
    doubled = weights * (torch.cat(won) - 2 * first.repeat_interleave(counts))
    wins = torch.segment_reduce(doubled, "sum", lengths=counts)
    has_both = above * below > 0
    return GroupValues((wins / (2 * above * below))[has_both], (above + below)[has_both])


def _aucs(positives: torch.Tensor, negatives: torch.Tensor) -> GroupValues:
    """The AUCs of the groups with both classes, by their numbers of rows. The keys must be sorted."""
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
    return GroupValues(doubled[has_both] / (2 * pairs[has_both]).double(), rows)
