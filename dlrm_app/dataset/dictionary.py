"""Numbers the distinct values of columns, so that work on equal values of a row group is done once.

Encoding, counting and writing all work on distinct values if there are few; see docs/how-to/preprocessing.md. All
columns are numbered in one compiled call: threads that returned to Python after every column would wait for one
another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import Bags, array_of, numbers_of
from dlrm_app.kernels.compiled import njit
from dlrm_app.kernels.hashing import GOLDEN

S = TypeVar("S", bound=np.generic)
V = TypeVar("V", bound=np.generic)

_OCCURRENCES = 4
_MAX_DISTINCT = (1 << 16) - 1
"""Numbering pays if a value occurs at least _OCCURRENCES times on average, and up to this many distinct values."""

_SAMPLE = 256

_0, _1, _64 = np.uint64(0), np.uint64(1), np.uint64(64)


@dataclass(frozen=True, slots=True)
class JaggedColumns(Generic[S]):
    """C columns in one array: column c is ``values[begins[c]:ends[c]]``."""

    values: NDArray[S]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]

    def __getitem__(self, column: int) -> NDArray[S]:
        return self.values[self.begins[column] : self.ends[column]]

    def __len__(self) -> int:
        return len(self.begins)

    def part(self, start: int, stop: int) -> "JaggedColumns[S]":
        """The columns from ``start`` to ``stop``, exclusive."""
        return JaggedColumns(self.values, self.begins[start:stop], self.ends[start:stop])

    def where(self, wanted: NDArray[np.bool_]) -> "JaggedColumns[S]":
        """The same columns; those that are not ``wanted`` [C] are empty."""
        return JaggedColumns(self.values, self.begins, np.where(wanted, self.ends, self.begins))

    def view(self, kind: type[V]) -> "JaggedColumns[V]":
        """The same bits, seen as values of another type of the same width."""
        return JaggedColumns(self.values.view(kind), self.begins, self.ends)

    @classmethod
    def joined(cls, columns: Sequence[NDArray[S]]) -> "JaggedColumns[S]":
        """Copies ``columns``, which have one type, into one array."""
        lengths = np.array([len(column) for column in columns], np.int64)
        ends = np.cumsum(lengths)
        return cls(np.concatenate(columns), ends - lengths, ends)


@dataclass(frozen=True, slots=True)
class Indexed(Generic[S]):
    """C numbered columns: ``distinct[c][codes[c]]`` are the values of column c; ``num_missing[c]`` of them are missing.

    Codes are uint16. Distinct values are in the order of their first occurrences; a column with too many has none.
    """

    codes: JaggedColumns[np.uint16]
    distinct: JaggedColumns[S]
    num_missing: NDArray[np.int64]

    def values(self, column: int, kind: type[V]) -> NDArray[V]:
        """The values of a numbered column, with the bits of the distinct values seen as ``kind``."""
        return self.distinct[column].view(kind)[self.codes[column]]


class IndexedColumn(NamedTuple):
    """Column ``number`` of ``indexed``. Its values are the bits of 32-bit values, and need not be distinct."""

    indexed: Indexed[np.uint32]
    number: int

    def values(self, kind: type[S]) -> NDArray[S]:
        """The values, with their bits seen as ``kind``."""
        return self.indexed.values(self.number, kind)


@dataclass(frozen=True)
class IndexedRows:
    """Encoded rows of ``schema``: the columns of a shard, numbers, lists or columns of ``indexed``."""

    schema: pa.Schema
    columns: Sequence[NDArray[Any] | Bags | IndexedColumn]
    indexed: Indexed[np.uint32] | None
    num_rows: int

    @classmethod
    def of(cls, table: pa.Table) -> "IndexedRows":
        """Makes rows from a table of plain columns."""
        return cls(table.schema, [_plain(column) for column in table.columns], None, len(table))

    def __len__(self) -> int:
        return self.num_rows

    @property
    def table(self) -> pa.Table:
        """The rows as plain columns."""
        columns = [
            pa.ListArray.from_arrays(array_of(column.offsets), array_of(column.values), type=field.type)
            if isinstance(column, Bags)
            else array_of(self.values(number))
            for number, (column, field) in enumerate(zip(self.columns, self.schema, strict=True))
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def values(self, number: int) -> NDArray[Any]:
        """The values of column ``number``, which must not hold lists."""
        column = self.columns[number]
        if isinstance(column, np.ndarray):
            return column
        assert isinstance(column, IndexedColumn), "the column holds lists"
        return column.values(self.schema.field(number).type.to_pandas_dtype())

    def bags(self, number: int) -> Bags:
        """The lists of column ``number``, which must hold lists."""
        column = self.columns[number]
        assert isinstance(column, Bags), "the column holds no lists"
        return column


def _plain(column: pa.ChunkedArray) -> NDArray[Any] | Bags:
    if not pa.types.is_list(column.type):
        return numbers_of(column)
    array = column.combine_chunks()
    offsets = numbers_of(array.offsets)
    return Bags(numbers_of(array.flatten()), offsets - offsets[0])


class Indexer(Generic[S]):
    """Numbers the values of the same columns, row group by row group.

    Once a row group of a column has too many distinct values, that column is not tried again, so the result depends on
    the values alone.
    """

    def __init__(self, missing: NDArray[S]) -> None:
        """``missing`` [C]: the value that means missing, of the type of the values: integers of 32 or 64 bits."""
        self._missing = missing
        self.has_given_up = np.zeros(len(missing), np.bool_)
        """[C]: columns that are not tried again; their values are not needed."""

    def index(self, columns: JaggedColumns[S]) -> Indexed[S]:
        limits = np.minimum((columns.ends - columns.begins) // _OCCURRENCES, _MAX_DISTINCT)
        limits[self.has_given_up] = 0
        indexed = index_columns(columns, limits, self._missing)
        self.has_given_up |= (indexed.distinct.begins == indexed.distinct.ends) & (
            columns.begins < columns.ends
        )
        return indexed


def index_columns(columns: JaggedColumns[S], limits: NDArray[np.int64], missing: NDArray[S]) -> Indexed[S]:
    """Numbers the columns that have at most ``limits`` [C] distinct values, each less than 2^16."""
    lengths = columns.ends - columns.begins
    codes_ends = np.cumsum(lengths)
    codes = JaggedColumns(np.empty(int(lengths.sum()), np.uint16), codes_ends - lengths, codes_ends)
    distinct = np.empty(int(limits.sum()) + len(limits), columns.values.dtype)
    bounds, num_missing = np.zeros(len(limits) + 1, np.int64), np.zeros(len(limits), np.int64)
    table = np.empty(_table_size(int(limits.max(initial=0))), np.uint16)
    _number_columns(
        columns.values,
        columns.begins,
        columns.ends,
        limits,
        missing,
        table,
        codes.values,
        codes.begins,
        distinct,
        bounds,
        num_missing,
    )
    return Indexed(codes, JaggedColumns(distinct[: bounds[-1]], bounds[:-1], bounds[1:]), num_missing)


@njit(nogil=True, cache=True)
def repeating(values, begins, ends):  # type: ignore[no-untyped-def]  # compiled
    """The number of values of each column that has equal values among its last ones, and 0 for other columns, [C].

    This is a guess, made in a fraction of the time of numbering all columns.
    """
    lengths = np.zeros(len(begins), np.int64)
    table = np.empty(_table_size(_SAMPLE), np.uint16)
    codes, distinct = np.empty(_SAMPLE, np.uint16), np.empty(_SAMPLE + 1, values.dtype)
    for c in range(len(begins)):
        sample = values[max(begins[c], ends[c] - _SAMPLE) : ends[c]]
        count, _ = _number(sample, values.dtype.type(0), table, codes, distinct)
        if count < len(sample):
            lengths[c] = ends[c] - begins[c]
    return lengths


@njit(nogil=True, cache=True)
def _table_size(limit):  # type: ignore[no-untyped-def]  # compiled
    """A power of two, at least four times ``limit``: collisions cost more than zeroing more slots."""
    size = 4
    while size < 4 * limit:
        size *= 2
    return size


@njit(nogil=True, cache=True)
def _number_columns(  # type: ignore[no-untyped-def]  # compiled
    values, begins, ends, limits, missing, table, codes, codes_begins, distinct, bounds, num_missing
):
    """Fills ``codes``, ``distinct``, ``bounds`` and ``num_missing``.

    The distinct values of column c go to distinct[bounds[c]:bounds[c + 1]].
    """
    for c in range(len(begins)):
        at, count = bounds[c], 0
        if limits[c] > 0:
            column_codes = codes[codes_begins[c] : codes_begins[c] + ends[c] - begins[c]]
            column_distinct = distinct[at : at + limits[c] + 1]
            column_table = table[: _table_size(limits[c])]
            count, num_missing[c] = _number(
                values[begins[c] : ends[c]], missing[c], column_table, column_codes, column_distinct
            )
        bounds[c + 1] = at + max(count, 0)


@njit(nogil=True, cache=True)
def _number(values, missing, table, codes, distinct):  # type: ignore[no-untyped-def]  # compiled
    """Returns (number of distinct values, or -1 once they fill ``distinct``; number of missing values).

    ``table`` holds numbers from 1 on; 0 is a free slot. It is not a table of ``kernels.hashing``: values are hashed
    by a single product, without which numbering takes 45% longer, and codes of 16 bits stay in the fastest cache.
    """
    table[:] = 0
    mask = np.uint64(len(table) - 1)
    shift = _64
    size = len(table)
    while size > 1:
        size >>= 1
        shift -= _1
    count = num_missing = 0
    for i in range(len(values)):
        value = values[i]
        # unsigned, so that indexing needs no test for negative numbers
        slot = (np.uint64(value) * GOLDEN) >> shift
        distinct[count] = value  # in case it is new: a branch would be mispredicted too often
        taken = np.uint64(table[slot])
        number = taken if taken != _0 else np.uint64(count + 1)
        while distinct[number - _1] != value:
            slot = (slot + _1) & mask
            taken = np.uint64(table[slot])
            number = taken if taken != _0 else np.uint64(count + 1)
        table[slot] = number
        count += taken == _0
        if count == len(distinct):
            return -1, 0
        codes[i] = number - _1
        num_missing += value == missing
    return count, num_missing
