"""Rows spread evenly over a split, few enough to hold in memory."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dlrm_app.dataset.column_rules import Bags
from dlrm_app.distributed.collectives import all_gather_objects
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.loader.reader import SplitReader
from dlrm_app.loader.rows import Columns

Feature = NDArray[np.int32] | Bags


def sample_rows(reader: SplitReader, max_rows: int, runtime: Runtime) -> Columns:
    """Every k-th row of a split, at most ``max_rows``, the same on every rank: each decodes its share of the row groups."""
    stride = max(1, -(-sum(reader.group_rows) // max_rows))
    firsts = np.cumsum([0, *reader.group_rows])

    def take_share() -> list[tuple[int, Columns]]:
        return [
            (group, _rows_of(reader, group, np.arange(-firsts[group] % stride, rows, stride)))
            for group, rows in enumerate(reader.group_rows)
            if group % runtime.world_size == runtime.rank
        ]

    by_rank = all_gather_objects(runtime.together(take_share))
    parts = [
        part for _, part in sorted((part for parts in by_rank for part in parts), key=lambda part: part[0])
    ]
    return Columns(
        [np.concatenate(column) for column in zip(*(part.dense for part in parts), strict=True)],
        [_joined(column) for column in zip(*(part.features for part in parts), strict=True)],
        np.concatenate([part.labels for part in parts]),
    )


def _rows_of(reader: SplitReader, group: int, numbers: NDArray[np.int64]) -> Columns:
    rows = reader.decode(group)
    return Columns(
        list(np.ascontiguousarray(rows.dense[numbers].T)),
        [take(feature, numbers) for feature in rows.features],
        rows.labels[numbers].astype(np.uint8),
    )


def take(feature: Feature, order: NDArray[np.int64]) -> Feature:
    """The rows ``order`` of a feature, in that order."""
    if not isinstance(feature, Bags):
        return feature[order]
    starts, counts = feature.offsets[order].astype(np.int64), np.diff(feature.offsets)[order].astype(np.int64)
    ends = counts.cumsum()
    within = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    return Bags(feature.values[np.repeat(starts, counts) + within], offsets)


def _joined(parts: Sequence[Feature]) -> Feature:
    bags = [part for part in parts if isinstance(part, Bags)]
    if not bags:
        return np.concatenate([part for part in parts if not isinstance(part, Bags)])
    counts = np.concatenate([np.diff(part.offsets) for part in bags])
    offsets = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
    return Bags(np.concatenate([part.values for part in bags]), offsets)
