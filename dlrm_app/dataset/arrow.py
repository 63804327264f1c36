"""NumPy arrays ↔ Arrow arrays, without pandas; reading columns from shards, and the rules that columns must keep.

pyarrow's own conversions, ``pa.array`` of a NumPy array and ``to_numpy``, import pandas if it is installed, which costs
a seventh of a second at a command's start. Reading raises the first ColumnError; dlrm-check collects all.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.manifest import DenseColumn, KeptColumn, SparseColumn
from dlrm_app.dataset.vector_columns import VectorColumn

LISTS = pa.list_(pa.field("element", pa.int32(), nullable=False))
"""The type of a multi-hot column in a shard."""
WEIGHT_LISTS = pa.list_(pa.field("element", pa.float32(), nullable=False))
"""The type of a column with the weights of lists' elements."""
VECTOR_TYPES: dict[str, type[np.floating[Any]]] = {"fp16": np.float16, "fp32": np.float32}


def array_of(values: NDArray[np.generic]) -> pa.Array:
    """An Arrow array over the memory of the numbers ``values`` [R]; they are copied if they are not contiguous."""
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, buffer])


def numbers_of(array: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """The values [R] of an Arrow array of numbers without nulls. Do not write to them: they may be Arrow's own memory.

    Raises ValueError if there are nulls.
    """
    if array.null_count:
        raise ValueError(f"{array.null_count} values are missing")
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    kind = np.dtype(array.type.to_pandas_dtype())
    if not len(array):
        return np.empty(0, kind)
    return np.frombuffer(array.buffers()[1], kind, len(array), array.offset * kind.itemsize)


@dataclass(frozen=True, slots=True)
class Bags:
    """A column of lists: row i holds ``values[offsets[i]:offsets[i + 1]]``, ids or, where it says so, weights."""

    values: NDArray[Any]
    offsets: NDArray[np.int32]


@dataclass(eq=False)
class ColumnError(Exception):
    """Raised if ``count`` values of a column break a rule; 0 means the whole column. ``example``: one of them."""

    column: str
    rule: str
    count: int = 0
    example: str = ""

    def __str__(self) -> str:
        number = f"{self.count:,} " if self.count else ""
        return f"column {self.column}: {number}{self.rule}" + f", such as {self.example}" * bool(self.example)


def read_column(table: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    """The column as one Arrow array of exactly ``kind``, without missing values."""
    if table.schema.get_field_index(name) < 0:
        raise ColumnError(name, "it is missing")
    column = table.column(name)
    stored = column.type
    if pa.types.is_list(stored):
        stored = pa.list_(stored.value_type)  # writers give different names to a list's items
    if stored != kind:
        raise ColumnError(name, f"it is {stored}, the manifest promises {kind}")
    if column.null_count:
        raise ColumnError(name, "values are missing", column.null_count)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def shard_schema(
    label: str | None,
    dense: Iterable[DenseColumn],
    sparse: Sequence[SparseColumn],
    kept: Iterable[KeptColumn] = (),
    weight: str | None = None,
    other_labels: Iterable[str] = (),
    vectors: Iterable[VectorColumn] = (),
) -> pa.Schema:
    """The columns of a shard. ``weight``, ``other_labels``: names of columns that rows without a label lack."""
    fields = [(label, pa.uint8())] if label else []
    fields += [(name, pa.float32()) for name in other_labels if label]
    fields += [(weight, pa.float32())] if label and weight else []
    fields += [(column.name, pa.float32()) for column in dense]
    fields += [(column.name, LISTS if column.multi_hot else pa.int32()) for column in sparse]
    fields += [(column.weights, WEIGHT_LISTS) for column in sparse if column.weights]
    fields += [
        (column.name, pa.list_(pa.field("element", word_type(column), nullable=False))) for column in vectors
    ]
    fields += [(part, pa.int32()) for column in kept for part in column.parts]
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])


def read_weights(table: pa.Table, name: str) -> NDArray[np.float32]:
    """The weights [R] of rows. Raises ColumnError unless they are finite numbers from 0 on."""
    weights: NDArray[np.float32] = numbers_of(read_column(table, name, pa.float32()))
    _check_weights(weights, name)
    return weights


def read_other_label(table: pa.Table, name: str) -> NDArray[np.float32]:
    """The values [R] of another label, NaN where a row lacks it. Raises ColumnError unless the others are 0 or 1."""
    values: NDArray[np.float32] = numbers_of(read_column(table, name, pa.float32()))
    is_good = (values == 0) | (values == 1) | np.isnan(values)
    refuse_wrong(values[~is_good], name, "labels are neither 0 nor 1, nor NaN")
    return values


def split_keys(keys: NDArray[np.uint64]) -> list[NDArray[np.int32]]:
    """The parts of a kept column: the lower and the upper 32 bits of its keys."""
    words = np.ascontiguousarray(keys).view(np.int32).reshape(-1, 2)  # little-endian, as Arrow's arrays are
    return [words[:, part].copy() for part in (0, 1)]


def time_keys(seconds: NDArray[np.float64]) -> NDArray[np.uint64]:
    """The keys [R] of times in seconds since 1970; NaN is missing."""
    is_missing = np.isnan(seconds)
    micros = np.round(np.where(is_missing, 0, seconds) * 1e6).astype(np.int64).view(np.uint64)
    return np.where(is_missing, np.uint64(KeptColumn.missing), micros)


def read_keys(table: pa.Table, column: KeptColumn) -> NDArray[np.uint64]:
    """The keys [R] of a kept column."""
    words = [numbers_of(read_column(table, part, pa.int32())) for part in column.parts]
    keys: NDArray[np.uint64] = np.stack(words, axis=1).view(np.uint64)[:, 0]
    return keys


def read_ids(table: pa.Table, column: SparseColumn) -> NDArray[np.int32] | Bags:
    """The ids [R] of a column, or its Bags if it is multi-hot, all within its table."""
    ids: NDArray[np.int32]
    if not column.multi_hot:
        ids = numbers_of(read_column(table, column.name, pa.int32()))
        _check_ids(ids, column)
        return ids
    array = read_column(table, column.name, pa.list_(pa.int32()))
    if missing := array.flatten().null_count:
        raise ColumnError(column.name, "ids inside lists are missing", missing)
    offsets = numbers_of(array.offsets)
    ids = numbers_of(array.values)[offsets[0] : offsets[-1]]
    _check_ids(ids, column)
    return Bags(ids, offsets - offsets[0])


def read_element_weights(table: pa.Table, column: SparseColumn, ids: Bags) -> Bags:
    """The bits of the weights (float32) of the ``ids`` of ``column``, to be copied as ids are.

    Raises ColumnError unless each id has one, a finite number from 0 on.
    """
    name = column.weights or ""
    array = read_column(table, name, pa.list_(pa.float32()))
    if missing := array.flatten().null_count:
        raise ColumnError(name, "weights inside lists are missing", missing)
    offsets = numbers_of(array.offsets)
    if wrong := int((np.diff(offsets) != np.diff(ids.offsets)).sum()):
        raise ColumnError(name, f"lists have other numbers of elements than those of {column.name}", wrong)
    weights: NDArray[np.float32] = numbers_of(array.values)[offsets[0] : offsets[-1]]
    _check_weights(weights, name)
    return Bags(weights.view(np.int32), ids.offsets)


def word_type(column: VectorColumn) -> pa.DataType:
    """The type of the words that vectors take in a shard."""
    return pa.int32() if column.dtype == "fp16" else pa.float32()


def pack_vectors(vectors: NDArray[np.float32], column: VectorColumn) -> NDArray[Any]:
    """The words [R, W] of ``vectors`` [R, S].

    Numbers of float16 lie two by two, the first one in the lower half of its word; the last half of an odd size is 0.
    """
    stored = vectors.astype(VECTOR_TYPES[column.dtype])
    if column.dtype == "fp32":
        return stored
    if column.size % 2:
        stored = np.pad(stored, ((0, 0), (0, 1)))
    return np.ascontiguousarray(stored).view(np.int32)


def unpack_vectors(words: NDArray[Any], column: VectorColumn) -> NDArray[np.float32]:
    """The vectors [R, S] of ``words`` [R · W]."""
    rows = words.reshape(len(words) // column.num_words, column.num_words)
    return rows.view(VECTOR_TYPES[column.dtype])[:, : column.size].astype(np.float32, copy=False)


def read_vectors(table: pa.Table, column: VectorColumn) -> NDArray[np.float32]:
    """The vectors [R, S] of a column. Raises ColumnError unless each has all its numbers, which are finite."""
    array = read_column(table, column.name, pa.list_(word_type(column)))
    if missing := array.flatten().null_count:
        raise ColumnError(column.name, "numbers of vectors are missing", missing)
    offsets = numbers_of(array.offsets)
    if wrong := int((np.diff(offsets) != column.num_words).sum()):
        raise ColumnError(column.name, f"vectors have another size than {column.size}", wrong)
    vectors = unpack_vectors(numbers_of(array.values)[offsets[0] : offsets[-1]], column)
    refuse_wrong(vectors[~np.isfinite(vectors)], column.name, "numbers of vectors are not finite")
    return vectors


def _check_weights(weights: NDArray[np.float32], name: str) -> None:
    is_good = (weights >= 0) & (weights < np.inf)
    refuse_wrong(weights[~is_good], name, "weights are negative or not finite")


def with_ids(ids: NDArray[np.int32] | Bags, others: NDArray[np.int32]) -> NDArray[np.int32] | Bags:
    """Replaces each id by ``others[id]``."""
    return Bags(others[ids.values], ids.offsets) if isinstance(ids, Bags) else others[ids]


def _check_ids(ids: NDArray[np.int32], column: SparseColumn) -> None:
    # viewed as unsigned, a negative id is a huge one, so one pass over the ids finds both
    if ids.size == 0 or int(ids.view(np.uint32).max()) < column.num_embeddings:
        return
    outside = ids[(ids < 0) | (ids >= column.num_embeddings)]
    refuse_wrong(outside, column.name, f"ids are outside its table of {column.num_embeddings:,} rows")


def refuse_wrong(wrong: NDArray[np.generic], name: str, rule: str) -> None:
    """Raises ColumnError if there are ``wrong`` values."""
    if len(wrong):
        raise ColumnError(name, rule, len(wrong), str(wrong[0]))
