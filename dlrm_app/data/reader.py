"""Parquet row groups → Rows: the checks that make a damaged or foreign file an error, never a wrong batch."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.data.batch_order import Order
from dlrm_app.data.column_rules import ColumnError, read_column, read_multi_hot, read_one_hot
from dlrm_app.data.manifest import Manifest, Shard, SparseColumn, label_of
from dlrm_app.data.rows import Bags, Rows, join, reorder, reorder_bags
from dlrm_app.data.shard_files import SUGGESTION, file_difference, row_group_difference
from dlrm_app.errors import ConfigError, DataError


class SplitReader:
    """Decodes the row groups of one split, numbered through all its shards.

    ``features`` are the sparse columns wanted, in the order wanted; dense columns are always all read.

    Raises DataError if the split is missing or has no labels, ConfigError for features it does not have.
    """

    def __init__(self, manifest: Manifest, split: str, features: Sequence[str]) -> None:
        self._label = label_of(manifest, split)
        self._folder = manifest.folder
        self._dense = [column.name for column in manifest.dense]
        sparse = _wanted(manifest, features)
        self._one_hot = [column for column in sparse if not column.multi_hot]
        self._multi_hot = [column for column in sparse if column.multi_hot]
        shards = manifest.splits[split].shards
        self._groups = [(shard, index) for shard in shards for index in range(len(shard.row_groups))]
        self._metadata: dict[str, pq.FileMetaData] = {}
        self.group_rows: list[int] = [rows for shard in shards for rows in shard.row_groups]

    def describe(self, group: int) -> str:
        """The shard and row group of number ``group``."""
        shard, index = self._groups[group]
        return f"{shard.path} (row group {index})"

    def read(self, order: Order, start_step: int = 0) -> Iterator[Rows]:
        """The batches of ``order`` from ``start_step`` on; fewer rows, or none, at the end of an evaluation.

        A row group is decoded when first needed and kept until its last row is given. A lane holds the one that
        it is in and one that it shares with the lane before or behind it, and a batch may span two.
        """
        last_steps = order.last_steps()
        kept: dict[int, Rows] = {}
        for step in range(start_step, order.num_steps):
            pieces = order.pieces(step)
            for group in {piece.group: None for piece in pieces}:
                if group not in kept:
                    kept[group] = self.decode(group, order.row_order(group, self.group_rows[group]))
            rows = [(kept[piece.group], piece.start, piece.stop) for piece in pieces]
            batch = join(rows) if rows else self._no_rows()
            del rows  # or the row groups dropped here would live on until the next batch
            for group in {piece.group for piece in pieces}:
                if last_steps[group] <= step:
                    del kept[group]
            yield batch

    def decode(self, group: int, row_order: NDArray[np.int64] | None = None) -> Rows:
        """The rows of ``group``, in ``row_order`` where one is given.

        Raises DataError, naming the file, if it is missing or damaged, if its columns are not what the
        manifest says, if a value is missing or an id lies outside its table.
        """
        shard, index = self._groups[group]
        table = self._read_table(shard, index)
        try:
            return self._rows(table, row_order)
        except ColumnError as error:
            raise DataError(f"{self._folder / shard.path}: {error}: preprocess again") from error

    def _rows(self, table: pa.Table, row_order: NDArray[np.int64] | None) -> Rows:
        dense = np.empty((len(table), len(self._dense)), np.float32)
        for index, name in enumerate(self._dense):
            dense[:, index] = reorder(read_column(table, name, pa.float32()).to_numpy(), row_order)
        one_hot = np.empty((len(self._one_hot), len(table)), np.int32)
        for index, column in enumerate(self._one_hot):
            one_hot[index] = reorder(read_one_hot(table, column), row_order)
        bags = [reorder_bags(read_multi_hot(table, column), row_order) for column in self._multi_hot]
        labels = reorder(read_column(table, self._label, pa.uint8()).to_numpy(), row_order)
        return Rows(dense, one_hot, bags, labels.astype(np.float32))

    def _read_table(self, shard: Shard, index: int) -> pa.Table:
        path = self._folder / shard.path
        sparse = [column.name for column in self._one_hot + self._multi_hot]
        columns = [*self._dense, *sparse, self._label]
        try:
            known = self._metadata.get(shard.path)
            with pq.ParquetFile(path, metadata=known, page_checksum_verification=True) as file:
                if known is None:
                    if difference := row_group_difference(file.metadata, path, shard):
                        raise DataError(f"{difference}: preprocess again")
                    self._metadata[shard.path] = file.metadata
                return file.read_row_group(index, columns=columns)
        except (pa.ArrowException, OSError) as error:
            raise DataError(_what_is_wrong(path, shard, error)) from error

    def _no_rows(self) -> Rows:
        none = Bags(np.empty(0, np.int32), np.zeros(1, np.int64))
        return Rows(
            np.empty((0, len(self._dense)), np.float32),
            np.empty((len(self._one_hot), 0), np.int32),
            [none] * len(self._multi_hot),
            np.empty(0, np.float32),
        )


def _wanted(manifest: Manifest, features: Sequence[str]) -> list[SparseColumn]:
    columns = {column.name: column for column in manifest.sparse}
    unknown = [name for name in features if name not in columns]
    repeated = sorted({name for name in features if list(features).count(name) > 1})
    problems = [f"feature {name} is not in the dataset, which has {', '.join(columns)}" for name in unknown]
    problems += [f"feature {name} is asked for twice: one table reads a feature" for name in repeated]
    if problems:
        raise ConfigError(problems)
    return [columns[name] for name in features]


def _what_is_wrong(path: Path, shard: Shard, error: Exception) -> str:
    try:
        difference = file_difference(path, shard, checksums=True)
    except OSError as read_error:
        return f"{path} cannot be read: {read_error}"
    if difference:
        return f"{difference}; {SUGGESTION}"
    return f"{path} cannot be decoded, though its checksum is right: {error}"
