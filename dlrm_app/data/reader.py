"""Parquet row groups → Rows: the checks that make a damaged or foreign file an error, never a wrong batch."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.data.batch_order import Order
from dlrm_app.data.manifest import Manifest, Shard, SparseColumn
from dlrm_app.data.rows import Bags, Rows, join, reorder, reorder_bags
from dlrm_app.errors import ConfigError, DataError
from dlrm_app.files import checksum

CURE = "copy the files again from where they are whole, or preprocess again"


class SplitReader:
    """Decodes the row groups of one split, numbered through all its shards.

    ``features`` are the sparse columns wanted, in the order wanted; dense columns are always all read.
    Without ``with_labels`` the labels are zeros and the label column is left alone.

    Raises DataError if the split is missing or has no labels, ConfigError for features it does not have.
    """

    def __init__(
        self, manifest: Manifest, split: str, features: Sequence[str], *, with_labels: bool = True
    ) -> None:
        folder = _folder(manifest)
        if split not in manifest.splits:
            raise DataError(
                f"{folder} has no {split} split, only {', '.join(manifest.splits)}: preprocess with one"
            )
        if with_labels and (manifest.label is None or manifest.splits[split].positives is None):
            raise DataError(
                f"the {split} split of {folder} has no labels: it can be predicted on, "
                "but to train or evaluate preprocess a labelled input"
            )
        self._folder = folder
        self._label = manifest.label if with_labels else None
        self._dense = [column.name for column in manifest.dense]
        sparse = _wanted(manifest, features)
        self._one_hot = [column for column in sparse if not column.multi_hot]
        self._multi_hot = [column for column in sparse if column.multi_hot]
        shards = manifest.splits[split].shards
        self._places = [(shard, place) for shard in shards for place in range(len(shard.row_groups))]
        self._metadata: dict[str, pq.FileMetaData] = {}
        self.group_rows: list[int] = [rows for shard in shards for rows in shard.row_groups]

    def describe(self, group: int) -> str:
        """The shard and row group of number ``group``."""
        shard, place = self._places[group]
        return f"{shard.path} (row group {place})"

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
        shard, place = self._places[group]
        path = self._folder / shard.path
        table = self._read_table(shard, place)
        dense = np.empty((len(table), len(self._dense)), np.float32)
        for at, name in enumerate(self._dense):
            dense[:, at] = reorder(_array(table, name, pa.float32(), path).to_numpy(), row_order)
        one_hot = np.empty((len(self._one_hot), len(table)), np.int32)
        for at, column in enumerate(self._one_hot):
            ids = _array(table, column.name, pa.int32(), path).to_numpy()
            _check_ids(ids, column, path)
            one_hot[at] = reorder(ids, row_order)
        bags = [reorder_bags(_bags(table, column, path), row_order) for column in self._multi_hot]
        labels = np.zeros(len(table), np.float32)
        if self._label is not None:
            labels[:] = reorder(_array(table, self._label, pa.uint8(), path).to_numpy(), row_order)
        return Rows(dense, one_hot, bags, labels)

    def _read_table(self, shard: Shard, place: int) -> pa.Table:
        path = self._folder / shard.path
        columns = [*self._dense, *[column.name for column in self._one_hot + self._multi_hot]]
        if self._label is not None:
            columns.append(self._label)
        try:
            known = self._metadata.get(shard.path)
            with pq.ParquetFile(path, metadata=known, page_checksum_verification=True) as file:
                if known is None:
                    _check_layout(file, shard, columns, path)
                    self._metadata[shard.path] = file.metadata
                return file.read_row_group(place, columns=columns)
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


def _folder(manifest: Manifest) -> Path:
    if manifest.path is None:
        raise ValueError("the manifest was not read from a folder: use read_manifest")
    return manifest.path


def _wanted(manifest: Manifest, features: Sequence[str]) -> list[SparseColumn]:
    columns = {column.name: column for column in manifest.sparse}
    unknown = [name for name in features if name not in columns]
    repeated = sorted({name for name in features if list(features).count(name) > 1})
    problems = [f"feature {name} is not in the dataset, which has {', '.join(columns)}" for name in unknown]
    problems += [f"feature {name} is asked for twice: one table reads a feature" for name in repeated]
    if problems:
        raise ConfigError(problems)
    return [columns[name] for name in features]


def _check_layout(file: pq.ParquetFile, shard: Shard, columns: Sequence[str], path: Path) -> None:
    lacking = sorted(set(columns) - set(file.schema_arrow.names))
    if lacking:
        raise DataError(
            f"{path} lacks column {', '.join(lacking)}, which the manifest promises: preprocess again"
        )
    metadata = file.metadata
    found = [metadata.row_group(place).num_rows for place in range(metadata.num_row_groups)]
    if found != shard.row_groups:
        raise DataError(
            f"{path} holds row groups of {found} rows, the manifest says {shard.row_groups}: "
            "the file was replaced after it was written; preprocess again"
        )


def _array(table: pa.Table, name: str, kind: pa.DataType, path: Path) -> Any:
    """The column as one Arrow array of exactly ``kind``, without missing values."""
    column = table.column(name)
    found = column.type
    if pa.types.is_list(found):
        found = pa.list_(found.value_type)  # writers differ in the name that they give to a list's items
    if found != kind:
        raise DataError(f"{path}: column {name} is {found}, it must be {kind}: preprocess again")
    if column.null_count:
        raise DataError(f"{path}: column {name} has {column.null_count} missing values, none are allowed")
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _check_ids(ids: NDArray[np.int32], column: SparseColumn, path: Path) -> None:
    # seen as unsigned a negative id is a huge one: a single pass over the ids finds both
    if ids.size == 0 or int(ids.view(np.uint32).max()) < column.num_embeddings:
        return
    outside = ids[(ids < 0) | (ids >= column.num_embeddings)]
    raise DataError(
        f"{path}: column {column.name} holds id {outside[0]}, its table has {column.num_embeddings} rows "
        f"(ids 0 to {column.num_embeddings - 1}); {outside.size} such ids in this row group: preprocess again"
    )


def _bags(table: pa.Table, column: SparseColumn, path: Path) -> Bags:
    array = _array(table, column.name, pa.list_(pa.int32()), path)
    if array.flatten().null_count:
        raise DataError(f"{path}: column {column.name} has missing values inside lists, none are allowed")
    offsets = array.offsets.to_numpy().astype(np.int64)
    values = array.values.to_numpy()[offsets[0] : offsets[-1]]
    _check_ids(values, column, path)
    return Bags(values, offsets - offsets[0])


def verify_shards(manifest: Manifest, *, checksums: bool = False) -> None:
    """Compares every shard with the manifest: its size, and with ``checksums`` its bytes.

    Raises DataError naming every shard that is missing or differs.
    """
    folder = _folder(manifest)
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    problems = [_difference(folder / shard.path, shard, checksums) for shard in shards]
    found = [f"  - {problem}" for problem in problems if problem]
    if found:
        raise DataError("\n".join([f"{folder} is damaged; {CURE}:", *found]))


def _difference(path: Path, shard: Shard, checksums: bool) -> str | None:
    if not path.is_file():
        return f"{path} is missing"
    size = path.stat().st_size
    if size != shard.bytes:
        return f"{path} has {size:,} bytes, the manifest says {shard.bytes:,}"
    if checksums and (found := checksum(path)) != shard.checksum:
        return f"{path} has checksum {found}, the manifest says {shard.checksum}"
    return None


def _what_is_wrong(path: Path, shard: Shard, error: Exception) -> str:
    try:
        difference = _difference(path, shard, checksums=True)
    except OSError as read_error:
        return f"{path} cannot be read: {read_error}"
    if difference:
        return f"{difference}; {CURE}"
    return f"{path} cannot be decoded, though its checksum is right: {error}"
