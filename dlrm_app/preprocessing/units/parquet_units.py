"""Units of Parquet input: runs of row groups, and slices of a row group that is larger than a unit.

Units depend only on the file's footer and the size of units, not on threads or on what is missing. Slices of one row
group are read in their order, each column through a small buffer, so that a row group of any size needs little memory.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dlrm_app.dataset.arrow import array_of
from dlrm_app.preprocessing.units.remote import Address, in_threads
from dlrm_app.preprocessing.units.source import Source, explained_damage
from dlrm_app.preprocessing.units.unit_text import TextRange

_WIDTH = 8
"""Bytes that a decoded value takes at least."""
_BUFFER = 1 << 18
"""Bytes that are read of a column at a time."""


class UnitRows(NamedTuple):
    """Rows [start, stop) of the row groups ``groups`` together, and their share of the file's bytes."""

    groups: range
    start: int
    stop: int
    file_bytes: int


@lru_cache(maxsize=64)
def units_of(source: Source, num_columns: int, unit_bytes: int) -> list[UnitRows]:
    """The units of a Parquet file of which ``num_columns`` are read; none without rows.

    A unit has about ``unit_bytes`` once it is decoded: several small row groups, or a slice of a large one.
    """
    footer = footer_of(source)
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    extents: list[tuple[range, int, int]] = []
    first = rows = decoded = 0
    for index, group in enumerate(groups):
        size = max(
            group.total_byte_size * num_columns // max(group.num_columns, 1),
            _WIDTH * num_columns * group.num_rows,
        )
        if rows and decoded + size > unit_bytes:
            extents.append((range(first, index), rows, rows))
            first, rows, decoded = index, 0, 0
        rows, decoded = rows + group.num_rows, decoded + size
        if decoded > unit_bytes:
            extents.append((range(first, index + 1), rows, max(rows * unit_bytes // decoded, 1)))
            first, rows, decoded = index + 1, 0, 0
    if rows:
        extents.append((range(first, len(groups)), rows, rows))
    return [
        UnitRows(
            which,
            start,
            min(start + step, count),
            source.bytes * (min(start + step, count) - start) // max(footer.num_rows, 1),
        )
        for which, count, step in extents
        for start in range(0, count, step)
    ]


@dataclass(frozen=True)
class ParquetUnit:
    """Rows ``table`` of a source."""

    source: int
    unit: int
    table: pa.Table
    file_bytes: int
    may_be_last: bool

    def detach(self) -> bool:
        """True: the unit needs its file no more."""
        return True

    def finish(self) -> TextRange:
        """What the unit is."""
        return TextRange(self.source, self.unit, self.file_bytes, self.file_bytes, 0, self.may_be_last)


@dataclass(frozen=True)
class ParquetFeed:
    """Units ``wanted``, at least one, that lie in the same row groups of a source; ``columns`` are read, in this order.

    ``columns``: name of each column → name in the file, or a key of its partition.
    """

    source: Source
    columns: Mapping[str, str]
    unit_bytes: int
    wanted: tuple[int, ...]
    _opened: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    def fetch_ahead(self) -> None:
        """Begins to fetch what lies in a store; ``items`` goes on with it."""
        if isinstance(self.source.path, Address) and not self._opened:
            self._opened.append(self.source.open(*_extents(self.source, self._groups, self._stored)))

    @property
    def _units(self) -> list[UnitRows]:
        return units_of(self.source, len(self.columns), self.unit_bytes)

    @property
    def _groups(self) -> range:
        return self._units[self.wanted[0]].groups

    @property
    def _stored(self) -> list[str]:
        """The columns that the file has, by their names there."""
        names = footer_of(self.source).schema.to_arrow_schema().names
        return list(dict.fromkeys(name for name in self.columns.values() if name in names))

    def items(self) -> Iterator[ParquetUnit]:
        """The units in order. Raises DataError if the file is damaged."""
        units, groups, stored = self._units, self._groups, self._stored
        alike = {number: unit for number, unit in enumerate(units) if unit.groups == groups}
        sizes = [unit.stop - unit.start for unit in alike.values()]
        self.fetch_ahead()
        with _open(self.source, self._opened) as file:
            batches = (
                chain.from_iterable(  # apart: over several row groups, Arrow makes one dictionary of theirs
                    file.iter_batches(max(*sizes, 1), [group], stored, use_threads=False) for group in groups
                )
            )
            left: list[pa.RecordBatch] = []

            def take(unit: UnitRows) -> pa.Table:
                with explained_damage(self.source):
                    table = _take(batches, left, unit.stop - unit.start, file.schema_arrow)
                return _with_partition(table, self.source.partition, self.columns)

            for number, unit in alike.items():
                if number in self.wanted:  # given away at once: no table is kept here while the next is read
                    is_last = number == len(units) - 1
                    yield ParquetUnit(self.source.index, number, take(unit), unit.file_bytes, is_last)
                elif number < self.wanted[-1]:
                    take(unit)


def _take(
    batches: Iterator[pa.RecordBatch], left: list[pa.RecordBatch], size: int, schema: pa.Schema
) -> pa.Table:
    """The next ``size`` rows of what is ``left`` and of ``batches``; what remains of a batch is ``left``."""
    taken = []
    while size:
        batch = left.pop() if left else next(batches, None)
        if batch is None:
            raise pa.ArrowInvalid("it has fewer rows than its footer says")
        if batch.num_rows > size:
            left.append(batch.slice(size))
            batch = batch.slice(0, size)
        taken.append(batch)
        size -= batch.num_rows
    return pa.Table.from_batches(taken, None if taken else schema)


def _with_partition(
    table: pa.Table, values: Mapping[str, str | None], columns: Mapping[str, str]
) -> pa.Table:
    """The ``columns`` under their names; those that ``table`` lacks have the value that ``values`` has of their key."""
    zeros = array_of(np.zeros(len(table), np.int32))
    arrays = [
        table[name]
        if name in table.column_names
        else pa.DictionaryArray.from_arrays(zeros, pa.array([values[name]], pa.string()))
        for name in columns.values()
    ]
    return pa.Table.from_arrays(arrays, list(columns))


def _extents(source: Source, groups: range, names: Sequence[str]) -> list[tuple[int, int]]:
    """The bytes of the columns ``names`` in the row groups ``groups``."""
    footer, extents = footer_of(source), []
    for group in groups:
        for column in range(footer.num_columns):
            if footer.schema.column(column).path.partition(".")[0] in names:
                chunk = footer.row_group(group).column(column)
                begin = min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset)
                extents.append((begin, begin + chunk.total_compressed_size))
    return extents


@contextmanager
def _open(source: Source, remote: list[Any]) -> Iterator[pq.ParquetFile]:
    """The file, whose footer is read once; the last of ``remote`` if it is one of a store. Raises DamagedFileError."""
    with ExitStack() as opened:
        place: Any = source.path
        if remote:
            place = opened.enter_context(io.BufferedReader(remote.pop(), _BUFFER))
        with explained_damage(source):
            file = pq.ParquetFile(
                place,
                metadata=footer_of(source),
                read_dictionary=repeated_texts(source),
                buffer_size=_BUFFER,  # mapped into memory, a file that becomes shorter would end the process
                pre_buffer=False,
            )
        yield opened.enter_context(file)


_REPEATED = 4
"""Bytes a value, dictionary included, below which strings are taken to be numbered in the file."""


@lru_cache(maxsize=64)
def repeated_texts(source: Source) -> list[str]:
    """The columns of strings that a file stores as numbers of distinct values: they are read so, and parsed once."""
    footer = footer_of(source)
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    names = []
    for index, path in enumerate(footer.schema.column(index).path for index in range(footer.num_columns)):
        parts = [group.column(index) for group in groups]
        limit = _REPEATED * sum(part.num_values for part in parts)
        is_text = parts and parts[0].physical_type == "BYTE_ARRAY"
        if is_text and sum(part.total_uncompressed_size for part in parts) <= limit:
            names.append(path)
    return names


@lru_cache(maxsize=4096)
def footer_of(source: Source) -> Any:
    """The pq.FileMetaData of a source. Raises DamagedFileError."""
    with explained_damage(source), ExitStack() as opened:
        if not isinstance(source.path, Address):
            return pq.read_metadata(source.path)
        return pq.read_metadata(opened.enter_context(io.BufferedReader(source.open(source.end), _BUFFER)))


def read_footers(sources: Sequence[Source]) -> None:
    """Has the footers of all Parquet sources at hand; those of a store are asked for together."""
    in_threads(footer_of, [source for source in sources if source.format == "parquet"])
