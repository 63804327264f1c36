"""Ranking metrics of groups of rows, such as requests: NDCG, MRR, hit rate, precision; exact and over all ranks.

Each group with a click counts once. Rows with equal scores have any order with the same probability, and a metric is
its expected value over these orders. Gains are the weights of clicks; positions count rows.

Shapes: G groups with a click, T blocks, n clicks. A block holds the rows of a group that have one score, if one of them
is a click; other rows matter only as rows above these.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from dlrm_app.config.metrics import group_metric_names, split_name
from dlrm_app.distributed.collectives import sum_in_rank_order
from dlrm_app.evaluation.grouped_auc import GroupedRows, GroupValues, grouped_auc

HIGHEST_SCORE = 0xFFFFFFFF
"""The score part of the highest key of a group."""


@dataclass(frozen=True, eq=False)
class ClickBlocks:
    """The clicks of this rank's groups, by blocks in rising order of group and score.

    Of blocks [T]: ``group`` (its number), ``above`` (rows of the group with higher scores), ``size``, ``clicks``,
    ``gains`` (float64). Of groups [G]: ``rows``, ``group_clicks``. Of clicks [n], within each group from the largest
    gain:
    ``best_gains`` (float64), ``best_places`` (from 0), ``best_groups``.
    """

    group: torch.Tensor
    above: torch.Tensor
    size: torch.Tensor
    clicks: torch.Tensor
    gains: torch.Tensor
    rows: torch.Tensor
    group_clicks: torch.Tensor
    best_gains: torch.Tensor
    best_places: torch.Tensor
    best_groups: torch.Tensor

    @classmethod
    def of(cls, grouped: GroupedRows) -> "ClickBlocks":
        """The blocks of ``grouped``."""
        positives, negatives = grouped.positives, grouped.negatives
        keys, clicks = torch.unique_consecutive(positives, return_counts=True)
        names, group = torch.unique_consecutive(keys >> 32, return_inverse=True)
        first, last = names << 32, (names << 32) + HIGHEST_SCORE
        ends = [torch.searchsorted(sorted_keys, last, right=True) for sorted_keys in (positives, negatives)]
        begins = [torch.searchsorted(sorted_keys, first) for sorted_keys in (positives, negatives)]
        group_clicks, others = (end - begin for end, begin in zip(ends, begins, strict=True))
        ties_end = torch.searchsorted(negatives, keys, right=True)
        size = clicks + ties_end - torch.searchsorted(negatives, keys)
        above = (ends[0][group] - clicks.cumsum(0)) + (ends[1][group] - ties_end)
        best_groups = torch.repeat_interleave(group_clicks)
        gains = positives.new_ones(len(positives), dtype=torch.float64)
        if grouped.weights is not None:
            gains = grouped.weights[0].double()
        best = gains
        if grouped.weights is not None:  # stable sorts: by gain, then by group
            order = gains.argsort(descending=True, stable=True)
            best = gains[order[best_groups[order].argsort(stable=True)]]
        places = torch.arange(len(positives), device=positives.device) - begins[0][best_groups]
        blocks = group, above, size, clicks, _sums(gains, torch.repeat_interleave(clicks), len(keys))
        return cls(*blocks, group_clicks + others, group_clicks, best, places, best_groups)

    def group_sums(self, values: torch.Tensor) -> torch.Tensor:
        """The sums [G] of ``values`` [T] over the blocks of each group."""
        return _sums(values, self.group, len(self.rows))

    def best_sums(self, values: torch.Tensor) -> torch.Tensor:
        """The sums [G] of ``values`` [n] over the clicks of each group."""
        return _sums(values, self.best_groups, len(self.rows))

    def first_blocks(self) -> torch.Tensor:
        """The block [G] of each group with the highest score."""
        return torch.bincount(self.group, minlength=len(self.rows)).cumsum(0) - 1


def _sums(values: torch.Tensor, numbers: torch.Tensor, count: int) -> torch.Tensor:
    return values.new_zeros(count, dtype=torch.float64).index_add_(0, numbers, values.double())


def ndcg(blocks: ClickBlocks, k: int) -> torch.Tensor:
    """The discounted gain of the first k rows over the largest possible, [G]; the discount of place i is log2(i + 1).

    Järvelin & Kekäläinen 2002, "Cumulated gain-based evaluation of IR techniques"; ties as in McSherry & Najork 2008,
    "Computing information retrieval performance measures efficiently in the presence of tied scores".
    """
    places = torch.arange(min(k, _most_rows(blocks)), dtype=torch.float64)
    # summed on the CPU: on GPUs a running sum of floats has no fixed order
    discounts = torch.cat([places.new_zeros(1), (1 / torch.log2(places + 2)).cumsum(0)]).to(
        blocks.gains.device
    )

    def discount(start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        last = len(discounts) - 1
        return discounts[end.clamp(max=last)] - discounts[start.clamp(max=last)]

    shares = discount(blocks.above, blocks.above + blocks.size) / blocks.size
    largest = discount(blocks.best_places, blocks.best_places + 1)
    return blocks.group_sums(blocks.gains * shares) / blocks.best_sums(blocks.best_gains * largest)


def mrr(blocks: ClickBlocks, _: int = 1) -> torch.Tensor:
    """One over the place of the first click, [G]."""
    first = blocks.first_blocks()
    above, size, clicks = (part[first].double() for part in (blocks.above, blocks.size, blocks.clicks))
    # the first of c clicks among m rows may have any of the places 1 to m - c + 1
    counts = (size - clicks + 1).long()
    group = torch.repeat_interleave(counts)
    rows_before = torch.arange(len(group), device=group.device) - (counts.cumsum(0) - counts)[group]
    rest = size[group] - 1 - rows_before
    chances = (_log_choices(rest, clicks[group] - 1) - _log_choices(size, clicks)[group]).exp()
    return _sums(chances / (above[group] + rows_before + 1), group, len(first))


def hit_rate(blocks: ClickBlocks, k: int) -> torch.Tensor:
    """1 if one of the first k rows is a click, [G]."""
    first = blocks.first_blocks()
    size, clicks = blocks.size[first].double(), blocks.clicks[first].double()
    drawn = (k - blocks.above[first]).clamp(min=0).double()
    others = size - clicks
    missed = (_log_choices(others, drawn.minimum(others)) - _log_choices(size, drawn.minimum(others))).exp()
    return 1 - torch.where(drawn > others, 0.0, missed)


def precision(blocks: ClickBlocks, k: int) -> torch.Tensor:
    """The share of clicks among the first k rows, or among all rows of a smaller group, [G].

    Of rows with weights: the gain of the first k rows over the largest possible, times the largest possible share.
    """
    counted = (blocks.above + blocks.size).clamp(max=k) - blocks.above.clamp(max=k)
    gained = blocks.group_sums(blocks.gains * counted / blocks.size)
    largest = blocks.best_sums(blocks.best_gains * (blocks.best_places < k))
    return gained / largest * blocks.group_clicks.clamp(max=k) / blocks.rows.clamp(max=k)


def _log_choices(rows: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The logarithm of the number of ways to choose ``chosen`` of ``rows``."""
    return torch.lgamma(rows + 1) - torch.lgamma(chosen + 1) - torch.lgamma(rows - chosen + 1)


def _most_rows(blocks: ClickBlocks) -> int:
    return int(blocks.rows.max()) if len(blocks.rows) else 0


RANKING_METRICS: Mapping[str, Callable[[ClickBlocks, int], torch.Tensor]] = {
    "ndcg": ndcg,
    "mrr": mrr,
    "hit_rate": hit_rate,
    "precision": precision,
}
"""Name, as in config.metrics.METRICS → its values [G] for one k."""


def group_values(grouped: GroupedRows, ranking: Sequence[int]) -> dict[str, GroupValues]:
    """The values of all metrics of groups, of this rank's groups, for the k in ``ranking``: GAUC and RANKING_METRICS."""
    blocks = ClickBlocks.of(grouped)
    once = blocks.gains.new_ones(len(blocks.rows))
    found = {}
    for name in group_metric_names(ranking):
        kind, k = split_name(name)
        metric = RANKING_METRICS.get(kind)
        found[name] = grouped_auc(grouped) if metric is None else GroupValues(metric(blocks, k or 1), once)
    return found


def count_groups(grouped: GroupedRows) -> dict[str, int]:
    """The numbers of groups with a click, ``groups``, and without one, ``groups_without_click``, on all ranks."""
    with_click, others = (
        torch.unique_consecutive(keys >> 32) for keys in (grouped.positives, grouped.negatives)
    )
    without = len(others) - int(torch.isin(others, with_click, assume_unique=True).sum())
    counts = torch.tensor([len(with_click), without], device=with_click.device)
    return dict(zip(("groups", "groups_without_click"), map(int, sum_in_rank_order(counts)), strict=True))


def measure_groups(grouped: GroupedRows, ranking: Sequence[int]) -> dict[str, float]:
    """The means of ``group_values`` over the groups of all ranks, and ``count_groups``. Every rank must call it."""
    means = {name: values.mean() for name, values in group_values(grouped, ranking).items()}
    return {**means, **count_groups(grouped)}


def undefined_groups(ranking: Sequence[int]) -> dict[str, float]:
    """``measure_groups`` of scores that are NaN."""
    return dict.fromkeys([*group_metric_names(ranking), "groups", "groups_without_click"], math.nan)
