"""Numbers that are kept for each row and shard of columns, when a table is cut into other shards of columns.

Bounds of shards are columns in rising order, 0 and the table's width included.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch


def shares(before: Sequence[int], first: int, end: int) -> dict[int, float]:
    """Shard of ``before`` → its share of the columns [first, end), for the shards that overlap them.

    Shares add up to 1.
    """
    overlaps = {
        number: min(end, high) - max(first, low) for number, (low, high) in enumerate(pairwise(before))
    }
    return {number: overlap / (end - first) for number, overlap in overlaps.items() if overlap > 0}


def resplit(
    values: Mapping[int, torch.Tensor], before: Sequence[int], after: Sequence[int]
) -> list[torch.Tensor]:
    """The numbers [R] of each shard of ``after``: the mean of those that it overlaps, weighted by width.

    ``values``: shard of ``before`` → its numbers [R]; shards that ``after`` does not overlap may be left out. For a
    mean of squared gradients this is exact where shards are joined; where one is split, its parts get the same number.
    """
    return [
        torch.stack([share * values[number] for number, share in shares(before, first, end).items()]).sum(0)
        for first, end in pairwise(after)
    ]
