"""Row groups as numbers, each value checked: types, missing values, labels, ids within tables, finite dense values."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import numbers_of
from dlrm_app.dataset.column_rules import ColumnError, read_column, read_multi_hot, read_one_hot, refuse_wrong
from dlrm_app.dataset.manifest import Manifest, Shard, SparseColumn


@dataclass(frozen=True)
class RowGroup:
    """Row group number ``index`` of ``shard``."""

    split: str
    shard: Shard
    index: int

    @property
    def rows(self) -> int:
        return self.shard.row_groups[self.index]


@dataclass
class Values:
    """What a row group holds of the columns asked for; a column with a fault is left out.

    labels uint8 [R], dense float32 [R] each, ids int32 [R] each, or [V] of lists with offsets int64 [R + 1].
    """

    labels: NDArray[np.uint8] | None = None
    dense: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    ids: dict[str, NDArray[np.int32]] = field(default_factory=dict)
    offsets: dict[str, NDArray[np.int32]] = field(default_factory=dict)
    faults: list[ColumnError] = field(default_factory=list)

    @contextmanager
    def keep_faults(self) -> Iterator[None]:
        """A block that reads a column, left at its first fault."""
        try:
            yield
        except ColumnError as error:
            self.faults.append(error)


def whole_row_groups(manifest: Manifest, whole: set[str]) -> list[RowGroup]:
    """The row groups of the shards in ``whole``, in the dataset's order."""
    return [
        RowGroup(name, shard, index)
        for name, split in manifest.splits.items()
        for shard in split.shards
        if shard.path in whole
        for index in range(len(shard.row_groups))
    ]


def read_row_group(
    manifest: Manifest, group: RowGroup, sparse: Sequence[SparseColumn], with_dense: bool
) -> Values:
    """The columns ``sparse`` of a row group; the label and dense ones too if ``with_dense``."""
    values = Values()
    dense = [column.name for column in manifest.dense] if with_dense else []
    has_labels = with_dense and manifest.splits[group.split].positives is not None
    labels = [manifest.label] if has_labels and manifest.label is not None else []
    names = [*dense, *labels, *(column.name for column in sparse)]
    try:
        with pq.ParquetFile(manifest.folder / group.shard.path) as file:
            table = file.read_row_group(group.index, columns=names, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        values.faults.append(ColumnError("all", f"row group {group.index} cannot be decoded: {error}"))
        return values
    for name in labels:
        with values.keep_faults():
            clicks = numbers_of(read_column(table, name, pa.uint8()))
            refuse_wrong(clicks[clicks > 1], name, "labels are neither 0 nor 1")
            values.labels = clicks
    for name in dense:
        with values.keep_faults():
            numbers = numbers_of(read_column(table, name, pa.float32()))
            refuse_wrong(numbers[~np.isfinite(numbers)], name, "values are not finite")
            values.dense[name] = numbers
    for column in sparse:
        with values.keep_faults():
            if column.multi_hot:
                bags = read_multi_hot(table, column)
                values.ids[column.name], values.offsets[column.name] = bags.values, bags.offsets
            else:
                values.ids[column.name] = read_one_hot(table, column)
    return values
