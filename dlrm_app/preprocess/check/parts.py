"""Row groups as numbers, each value checked: types, missing values, labels, ids within tables, finite dense values."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.data.manifest import Manifest, Shard, SparseColumn


@dataclass(frozen=True)
class Part:
    """A row group: number ``place`` of ``shard``."""

    split: str
    shard: Shard
    place: int

    @property
    def rows(self) -> int:
        return self.shard.row_groups[self.place]


@dataclass(frozen=True)
class Fault:
    """What is wrong with ``count`` values of a column, 0 for all of it; ``example`` is one of them."""

    column: str
    rule: str
    count: int = 0
    example: str = ""


@dataclass
class Values:
    """What a row group holds of the columns asked for; a column with a fault is left out.

    labels uint8 [R], dense float32 [R] each, ids int32 [R] each, or [V] of lists whose ends are int32 [R + 1].
    """

    labels: NDArray[np.uint8] | None = None
    dense: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    ids: dict[str, NDArray[np.int32]] = field(default_factory=dict)
    ends: dict[str, NDArray[np.int32]] = field(default_factory=dict)
    faults: list["Fault"] = field(default_factory=list)


def all_parts(manifest: Manifest, whole: set[str]) -> list[Part]:
    """The row groups of the shards in ``whole``, in the dataset's order."""
    return [
        Part(name, shard, place)
        for name, split in manifest.splits.items()
        for shard in split.shards
        if shard.path in whole
        for place in range(len(shard.row_groups))
    ]


@dataclass(frozen=True)
class Reading:
    """Reads parts of the dataset in ``folder``: the label and dense columns if ``with_dense``, and ``sparse``."""

    folder: Path
    manifest: Manifest
    with_dense: bool
    sparse: Sequence[SparseColumn]

    def read(self, part: Part) -> Values:
        label = self.manifest.label
        if self.manifest.splits[part.split].positives is None:
            label = None
        dense = self.manifest.dense if self.with_dense else []
        names = [column.name for column in dense] + [column.name for column in self.sparse]
        if label is not None and self.with_dense:
            names.append(label)
        values = Values()
        try:
            with pq.ParquetFile(self.folder / part.shard.path) as file:
                table = file.read_row_group(part.place, columns=names, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            values.faults.append(Fault("all", f"row group {part.place} cannot be decoded: {error}"))
            return values
        if label is not None and self.with_dense:
            values.labels = _labels(table, label, values)
        for column in dense:
            _add_dense(table, column.name, values)
        for sparse in self.sparse:
            _add_ids(table, sparse, values)
        return values


def _column(table: pa.Table, name: str, kind: pa.DataType, values: Values) -> pa.Array | None:
    if name not in table.schema.names:
        values.faults.append(Fault(name, "it is missing"))
        return None
    column = table.column(name)
    found = pa.list_(column.type.value_type) if pa.types.is_list(column.type) else column.type
    if found != kind:
        values.faults.append(Fault(name, f"it is {found}, the manifest promises {kind}"))
        return None
    if column.null_count:
        values.faults.append(Fault(name, "values are missing", column.null_count))
        return None
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _labels(table: pa.Table, name: str, values: Values) -> NDArray[np.uint8] | None:
    array = _column(table, name, pa.uint8(), values)
    if array is None:
        return None
    labels: NDArray[np.uint8] = array.to_numpy()
    others = labels[labels > 1]
    if len(others):
        values.faults.append(Fault(name, "labels are neither 0 nor 1", len(others), str(others[0])))
        return None
    return labels


def _add_dense(table: pa.Table, name: str, values: Values) -> None:
    array = _column(table, name, pa.float32(), values)
    if array is None:
        return
    numbers: NDArray[np.float32] = array.to_numpy()
    others = numbers[~np.isfinite(numbers)]
    if len(others):
        values.faults.append(Fault(name, "values are not finite", len(others), str(others[0])))
        return
    values.dense[name] = numbers


def _add_ids(table: pa.Table, column: SparseColumn, values: Values) -> None:
    kind = pa.list_(pa.int32()) if column.multi_hot else pa.int32()
    array = _column(table, column.name, kind, values)
    if array is None:
        return
    ends = None
    if column.multi_hot:
        ends = array.offsets.to_numpy()
        flat = array.values
        if flat.null_count:
            values.faults.append(Fault(column.name, "ids inside lists are missing", flat.null_count))
            return
        ids = flat.to_numpy()[ends[0] : ends[-1]]
        ends = ends - ends[0]
    else:
        ids = array.to_numpy()
    # seen as unsigned a negative id is a huge one
    outside = ids[ids.view(np.uint32) >= np.uint32(column.num_embeddings)]
    if len(outside):
        rule = f"ids are outside its table of {column.num_embeddings:,} rows"
        values.faults.append(Fault(column.name, rule, len(outside), str(outside[0])))
        return
    values.ids[column.name] = ids
    if ends is not None:
        values.ends[column.name] = ends
