"""Parquet row groups → Rows, in the order of an epoch."""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import accumulate
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import (
    Bags,
    ColumnError,
    numbers_of,
    read_column,
    read_element_weights,
    read_ids,
    read_keys,
    read_other_label,
    read_vectors,
    read_weights,
    unpack_vectors,
    with_ids,
)
from dlrm_app.dataset.dictionary import IndexedRows
from dlrm_app.dataset.encoding_files import ids_known_on
from dlrm_app.dataset.manifest import KeptColumn, Manifest, SparseColumn, label_of
from dlrm_app.dataset.shard_files import ShardReader, verify_shards
from dlrm_app.dataset.splits import Shard
from dlrm_app.distributed.collectives import while_others_wait
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import DataError, Problem
from dlrm_app.loader.batch_order import Order
from dlrm_app.loader.prefetch import map_in_order
from dlrm_app.loader.rows import Columns, Ranges, Rows, arrange
from dlrm_app.loader.soft_labels import SoftLabels

S = TypeVar("S", bound=np.generic)
T = TypeVar("T")

_BROUGHT_AT_ONCE, _BROUGHT_AHEAD = 16, 64
"""Shards that come at the same time, and parts of shards that are asked for ahead of their use."""


def when_brought(
    shards: ShardReader, parts: Iterable[T], shard_of: Callable[[T], Shard]
) -> Generator[T, None, None]:
    """Yields ``parts`` of shards in order, each once its file is on this disk; the next ones come meanwhile."""
    if (source := shards.source) is None:
        yield from parts
        return

    def bring(part: T) -> T:
        source.bring(shard_of(part))
        return part

    with closing(map_in_order(bring, parts, _BROUGHT_AT_ONCE, _BROUGHT_AHEAD)) as brought:
        yield from brought


def verify_together(manifest: Manifest, checksums: bool, runtime: Runtime) -> None:
    """``verify_shards`` by all ranks, each its part of the shards.

    Every rank must call it; all raise the same error.
    """

    def verify_own() -> None:
        verify_shards(manifest, checksums=checksums, part=runtime.rank, num_parts=runtime.world_size)

    runtime.together(while_others_wait, verify_own)


ROWS_TOGETHER = 256
"""Rows of a lane that are copied together, if batches take fewer: copying few rows mostly waits for memory."""


class TableReader:
    """Encoded tables → the columns that a model reads: all dense columns and vectors, sparse ``features`` in their
    order, labels.

    Labels that the dataset does not have are missing in all rows; a model may have learnt them from another dataset.
    The weights of features' elements come with them, if they have any.

    ``with_weights``: also the weights of rows, if they have any. If ``manifest.known_on`` names a day, ids that were
    assigned later are read as the rare id.
    """

    def __init__(self, manifest: Manifest, features: Sequence[str], with_weights: bool = False) -> None:
        columns = {column.name: column for column in manifest.sparse}
        self._dense = [column.name for column in manifest.dense]
        self._sparse = [columns[name] for name in features]
        self._vectors = manifest.vectors
        self.label = manifest.label
        self.other_labels = [each.name for each in manifest.other_labels]
        self._stored = {name for split in manifest.splits.values() for name in split.labels}
        self.weight = manifest.weight if with_weights else None
        day = manifest.known_on
        self._known: dict[str, NDArray[np.int32]] = {
            column.name: ids_known_on(manifest.folder, column, day)
            for column in self._sparse
            if day is not None and column.encoding["kind"] == "vocab"
        }

    def columns(self, has_label: bool) -> list[str]:
        """The names of the columns to read."""
        names = [*self._dense, *(column.name for column in self._sparse)]
        names += [column.weights for column in self._sparse if column.weights]
        names += [column.name for column in self._vectors]
        labels = [name for name in self.other_labels if name in self._stored]
        supervision = [name for name in (self.label, *labels, self.weight) if name]
        return [*names, *supervision] if has_label and self.label else names

    def read(self, table: pa.Table, origin: object, *, has_label: bool = True) -> Columns:
        """The columns of ``table``; without ``has_label`` the label is 0, and there are neither others nor weights.

        Raises DataError naming ``origin`` and the column.
        """
        supervision: list[NDArray[np.uint8] | NDArray[np.float32]] = [np.zeros(len(table), np.uint8)]
        try:
            if has_label and self.label is not None:
                main = numbers_of(read_column(table, self.label, pa.uint8()))
                supervision = [main, *(self._read_other(table, name) for name in self.other_labels)]
                supervision += [read_weights(table, self.weight)] if self.weight else []
            dense = [numbers_of(read_column(table, name, pa.float32())) for name in self._dense]
            sparse = self._known_ids([read_ids(table, column) for column in self._sparse])
            element_weights = [
                read_element_weights(table, column, ids)
                for column, ids in zip(self._sparse, sparse, strict=True)
                if column.weights and isinstance(ids, Bags)
            ]
            vectors = [read_vectors(table, column) for column in self._vectors]
            return Columns(dense, sparse, supervision, element_weights, vectors)
        except ColumnError as error:
            raise DataError(Problem(str(origin), f"is wrong in {error}", "preprocess again")) from error

    def read_encoded(self, rows: IndexedRows) -> Columns:
        """The columns of ``rows`` without labels, as the manifest's encoder made them just now: nothing is checked."""
        place = {name: number for number, name in enumerate(rows.schema.names)}
        sparse = [
            rows.bags(place[column.name]) if column.multi_hot else rows.values(place[column.name])
            for column in self._sparse
        ]
        return Columns(
            [rows.values(place[name]) for name in self._dense],
            self._known_ids(sparse),
            [np.zeros(len(rows), np.uint8)],
            element_weights=[
                Bags(weights.values.view(np.int32), weights.offsets)
                for column in self._sparse
                if column.weights
                for weights in [rows.bags(place[column.weights])]
            ],
            vectors=[unpack_vectors(rows.bags(place[c.name]).values, c) for c in self._vectors],
        )

    def _known_ids(self, sparse: list[NDArray[np.int32] | Bags]) -> list[NDArray[np.int32] | Bags]:
        """``sparse`` with the rare id in place of ids that were assigned after ``known_on``."""
        for number, column in enumerate(self._sparse if self._known else ()):
            if (known := self._known.get(column.name)) is not None:
                sparse[number] = with_ids(sparse[number], known)
        return sparse

    def _read_other(self, table: pa.Table, name: str) -> NDArray[np.float32]:
        if name in self._stored:
            return read_other_label(table, name)
        return np.full(len(table), np.nan, np.float32)


class SplitReader:
    """Decodes the row groups of one split, numbered through all its shards.

    ``features``: the sparse columns to read, in this order; all dense columns are read. ``soft_labels`` replace
    the labels. ``all_negatives``: weights of negatives are those of the log, of which sampling has kept a share.

    Raises DataError if the split is missing or has no labels.
    """

    def __init__(
        self,
        manifest: Manifest,
        split: str,
        features: Sequence[str],
        soft_labels: SoftLabels | None = None,
        *,
        all_negatives: bool = False,
    ) -> None:
        label_of(manifest, split)  # raises DataError
        self.manifest, self.features = manifest, features
        self._folder = manifest.folder
        self._tables = TableReader(manifest, features, with_weights=True)
        self.num_labels = 1 + len(self._tables.other_labels)
        self._kept_share = manifest.kept_share(split) if all_negatives else 1.0
        self.is_weighted = manifest.is_weighted or self._kept_share < 1
        shards = manifest.splits[split].shards
        self._groups = [(shard, index) for shard in shards for index in range(len(shard.row_groups))]
        self._shards = ShardReader(self._folder, self._tables.columns(has_label=True))
        self.group_rows: list[int] = [rows for shard in shards for rows in shard.row_groups]
        self._first_rows = [0, *accumulate(self.group_rows)]
        self._soft_labels = soft_labels

    def read_kept(self, column: KeptColumn, first: int, end: int) -> NDArray[np.uint64]:
        """The keys of the kept ``column`` of rows [first, end) of the split, in the order of its files.

        Raises DataError.
        """
        return self._read_rows(column.parts, lambda table: read_keys(table, column), first, end)

    def read_ids(self, column: SparseColumn, first: int, end: int) -> NDArray[np.int32]:
        """The ids of a column of one value of rows [first, end), as ``read_kept``. Raises DataError."""

        def read(table: pa.Table) -> NDArray[np.int32]:
            ids = read_ids(table, column)
            assert not isinstance(ids, Bags), "the column has one value"
            return ids

        return self._read_rows([column.name], read, first, end)

    def _read_rows(
        self, columns: Sequence[str], read: Callable[[pa.Table], NDArray[S]], first: int, end: int
    ) -> NDArray[S]:
        shards = ShardReader(self._folder, columns)
        parts: list[NDArray[S]] = []
        for (shard, index), start, rows in zip(self._groups, self._first_rows, self.group_rows, strict=False):
            low, high = max(first - start, 0), min(end - start, rows)
            if low < high or not parts:
                try:
                    parts.append(read(shards.read(shard, index))[low : max(low, high)])
                except ColumnError as error:
                    raise DataError(
                        Problem(str(self._folder / shard.path), f"is wrong in {error}", "preprocess again")
                    ) from error
        return np.concatenate(parts)

    def describe(self, group: int) -> str:
        """The shard and row group of number ``group``."""
        shard, index = self._groups[group]
        return f"{shard.path} (row group {index})"

    def read(self, order: Order, start_step: int = 0, num_workers: int = 1) -> Generator[Ranges, None, None]:
        """The rows of the batches of ``order`` from ``start_step`` on; an evaluation's last steps may have no rows.

        Several small batches come together. Each result must be used before the next is requested. ``num_workers``
        threads decode row groups in the order of need, a few of them ahead. A row group is kept until its
        last row is used. A lane keeps its current row group and one that it shares with a neighbouring lane,
        or more if a batch spans more.
        """
        done_after = order.last_steps()
        kept: dict[int, Rows] = {}
        spare: list[NDArray[np.int32]] = []  # from used row groups, for later ones: new memory costs time

        def decode(group: int) -> Rows:
            memory = None
            with suppress(IndexError):
                memory = spare.pop()
            return self.decode(group, order.row_order(group, self.group_rows[group]), memory)

        lot = max(1, ROWS_TOGETHER // order.rows_per_lane)
        needed = order.groups_by_need(start_step, lot)
        groups = when_brought(self._shards, needed, lambda group: self._groups[group][0])
        decoded = map_in_order(decode, groups, num_workers, 2 * num_workers)
        with closing(groups), closing(decoded):
            for step in range(start_step, order.num_steps, lot):
                num_steps = min(lot, order.num_steps - step)
                pieces = order.piece_array(step, num_steps)
                groups = pieces[:, 0].tolist()
                for group in dict.fromkeys(groups):
                    if group not in kept:
                        kept[group] = next(decoded)
                yield Ranges([kept[group] for group in groups], pieces[:, 1:], order.rows_per_lane, num_steps)
                for group in set(groups):
                    if done_after[group] < step + num_steps:
                        spare.append(kept.pop(group).memory)

    def decode(
        self, group: int, row_order: NDArray[np.int64] | None = None, memory: NDArray[np.int32] | None = None
    ) -> Rows:
        """The rows of ``group``, in ``row_order`` if it is given, and in ``memory`` if they fit into it.

        Raises DataError, naming the file, if it is missing or damaged, if its columns differ from the
        manifest, if a value is missing or an id lies outside its table.
        """
        return arrange(self.read_columns(group), row_order, memory)

    def read_columns(self, group: int) -> Columns:
        """The rows of ``group`` by column, in the file's order. Raises DataError, as ``decode`` does."""
        shard, index = self._groups[group]
        columns = self._tables.read(self._shards.read(shard, index), self._folder / shard.path)
        main, *others = columns.supervision
        if self._kept_share < 1:
            weights = others.pop() if self._tables.weight else np.ones(len(main), np.float32)
            others.append(np.where(main > 0, weights, (weights / self._kept_share).astype(np.float32)))
        if self._soft_labels is not None:
            main = self._soft_labels.mixed(self._first_rows[group], main)
        return replace(columns, supervision=[main, *others])
