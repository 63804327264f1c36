"""Units of Parquet input: runs of row groups, or slices of a row group that is larger than a unit.

Units depend only on the file's footer and the size of units. The slices of one row group are read in order, each column
through a small buffer, so that a row group of any size needs little memory.
"""

import io
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dlrm_app.dataset.arrow import array_of
from dlrm_app.dataset.parquet import MAGIC
from dlrm_app.logs.sources.plain_parquet import decode_plain, is_plain, short_texts
from dlrm_app.logs.sources.remote_file import RemoteFile
from dlrm_app.logs.sources.source import InputFile, explained_damage
from dlrm_app.logs.sources.store import Address, in_threads
from dlrm_app.logs.sources.unit_text import FileRange, TextRange

_WIDTH = 8
"""The least bytes of a decoded value."""
_BUFFER = 1 << 18
"""Bytes of a column that are read at a time."""
FEW_ROWS = 10_000
"""Fewer rows take Arrow less time than it takes to load polars."""


class UnitRows(NamedTuple):
    """Rows [start, stop), counted through the row groups ``groups``. ``file_bytes``: their share of the file."""

    groups: range
    start: int
    stop: int
    file_bytes: int


@lru_cache(maxsize=64)
def units_of(source: InputFile, num_columns: int, unit_bytes: int) -> list[UnitRows]:
    """The units of a Parquet file, of which ``num_columns`` columns are read. A file without rows has none.

    A decoded unit has about ``unit_bytes``: several small row groups, or a slice of a large one.
    """
    footer = footer_of(source)
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    extents: list[tuple[range, int, int]] = []
    first = rows = decoded = 0
    for index, group in enumerate(groups):
        size = _decoded_bytes(group, num_columns)
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


def _decoded_bytes(group: pq.RowGroupMetaData, num_columns: int) -> int:
    """The bytes of ``num_columns`` columns of a row group, decoded, about."""
    size: int = group.total_byte_size * num_columns // max(group.num_columns, 1)
    return max(size, _WIDTH * num_columns * group.num_rows)


def decoded_bytes(source: InputFile, num_columns: int) -> int:
    """The bytes of ``num_columns`` columns of a Parquet file, decoded, about."""
    footer = footer_of(source)
    return sum(_decoded_bytes(footer.row_group(at), num_columns) for at in range(footer.num_row_groups))


@dataclass(frozen=True)
class ParquetUnit:
    """A unit of a Parquet file, with its rows in ``table``; or a bundle of ``files``."""

    source: int
    unit: int
    table: pa.Table
    file_bytes: int
    may_be_last: bool
    files: tuple[FileRange, ...] = ()

    @property
    def name(self) -> str:
        """The unit's name in journals."""
        return self.finish().name

    def detach(self) -> bool:
        """True, because the unit has read all that it needs from its file."""
        return True

    def finish(self) -> TextRange:
        """The extent of the unit."""
        if self.files:
            return TextRange.of_bundle(self.source, self.files, self.may_be_last)
        return TextRange(self.source, self.unit, self.file_bytes, self.file_bytes, 0, self.may_be_last)


@dataclass(frozen=True)
class ParquetFeed:
    """Units ``wanted`` (at least one) of a source, which all lie in the same row groups.

    ``columns``: the columns to read, in this order: name → name in the file, or key of its partition. ``fetched``: the
    open object of a store, which ``items`` reads; None until the feed is prefetched, and for local files.
    """

    source: InputFile
    columns: Mapping[str, str]
    unit_bytes: int
    wanted: tuple[int, ...]
    fetched: io.RawIOBase | None = field(default=None, repr=False, compare=False)

    def prefetched(self) -> "ParquetFeed":
        """The same feed; an object of a store is being fetched."""
        if self.fetched is not None or not isinstance(self.source.path, Address):
            return self
        return replace(self, fetched=self.source.open(*_extents(self.source, self._groups, self._stored)))

    @property
    def _units(self) -> list[UnitRows]:
        return units_of(self.source, len(self.columns), self.unit_bytes)

    @property
    def _groups(self) -> range:
        return self._units[self.wanted[0]].groups

    @property
    def _stored(self) -> list[str]:
        """The columns that the file has, by their names there."""
        names = {*schema_of(self.source).names}
        return list(dict.fromkeys(name for name in self.columns.values() if name in names))

    def items(self) -> Generator[ParquetUnit, None, None]:
        """The units in order. Raises DataError if the file is damaged."""
        units, groups = self._units, self._groups
        alike = {number: unit for number, unit in enumerate(units) if unit.groups == groups}
        most_rows = max(unit.stop - unit.start for unit in alike.values())
        with self._readable() as (place, file):
            is_plain = place is not None and most_rows >= FEW_ROWS
            plain = plain_columns(self.source, self._stored) if is_plain else []
            others = [name for name in self._stored if name not in {*plain}]
            rows = _RowReader(file, groups, others, max(most_rows, 1))
            for number, unit in alike.items():
                if number > self.wanted[-1]:
                    break
                with explained_damage(self.source):
                    table = rows.read(unit.stop - unit.start)
                    if number in self.wanted:
                        tables = [table, self._plain(file, place or "", unit, plain)]
                if (
                    number in self.wanted
                ):  # yielded at once: this function keeps no table while the next is read
                    whole = _side_by_side(tables, self.source.partition, self.columns)
                    del table, tables
                    yield ParquetUnit(
                        self.source.index, number, whole, unit.file_bytes, number == len(units) - 1
                    )
                    del whole

    @contextmanager
    def _readable(self) -> Iterator[tuple[str | None, pq.ParquetFile]]:
        """(The path of the file, the open file); no path for an object whose bytes are not in memory at once."""
        fetched = self.prefetched().fetched
        with ExitStack() as opened:
            place: str | None = self.source.path
            if isinstance(fetched, RemoteFile):
                opened.enter_context(fetched)
                place = opened.enter_context(fetched.in_memory(_end_of(self.source)))
            yield place, opened.enter_context(_open(self.source, place or fetched))

    def _plain(self, file: pq.ParquetFile, place: str, unit: UnitRows, names: list[str]) -> pa.Table | None:
        """The columns ``names`` of the rows of ``unit``; None if there are no such columns."""
        if not names:
            return None
        before = sum(file.metadata.row_group(group).num_rows for group in range(unit.groups.start))
        table = decode_plain([place], names, before + unit.start, unit.stop - unit.start)
        if table is None:  # Arrow tells what is wrong
            groups = file.read_row_groups(list(unit.groups), names, use_threads=False)
            table = groups.slice(unit.start, unit.stop - unit.start)
        return table


class _RowReader:
    """Reads the columns ``names`` of row groups, any number of rows at a time; a batch has up to ``batch_rows``."""

    def __init__(self, file: pq.ParquetFile, groups: range, names: list[str], batch_rows: int) -> None:
        self._schema = file.schema_arrow
        # one row group at a time: over several, Arrow would join their dictionaries into one
        self._batches = chain.from_iterable(
            file.iter_batches(batch_rows, [group], names, use_threads=False) for group in groups
        )
        self._rest: pa.RecordBatch | None = None

    def read(self, num_rows: int) -> pa.Table:
        """The next ``num_rows`` rows. Raises ArrowInvalid if the file has fewer."""
        taken: list[pa.RecordBatch] = []
        while num_rows:
            batch = next(self._batches, None) if self._rest is None else self._rest
            if batch is None:
                raise pa.ArrowInvalid("it has fewer rows than its footer says")
            taken.append(batch.slice(0, num_rows))
            self._rest = batch.slice(num_rows) if batch.num_rows > num_rows else None
            num_rows -= taken[-1].num_rows
        return pa.Table.from_batches(taken, None if taken else self._schema)


def _side_by_side(
    tables: Sequence[pa.Table | None], values: Mapping[str, str | None], columns: Mapping[str, str]
) -> pa.Table:
    """The ``columns`` of ``tables``, which have the same rows, under their names.

    A column that no table has gets the value of its key in ``values``.
    """
    found = {name: table[name] for table in tables if table is not None for name in table.column_names}
    num_rows = max(len(table) for table in tables if table is not None)
    zeros = array_of(np.zeros(num_rows, np.int32))
    arrays = [
        found[name]
        if name in found
        else pa.DictionaryArray.from_arrays(zeros, pa.array([values[name]], pa.string()))
        for name in columns.values()
    ]
    return pa.Table.from_arrays(arrays, list(columns))


def _extents(source: InputFile, groups: range, names: Sequence[str]) -> list[tuple[int, int]]:
    """The ranges of bytes of the columns ``names`` in the row groups ``groups``."""
    footer, extents, wanted = footer_of(source), [], {*names}
    paths = [footer.schema.column(column).path for column in range(footer.num_columns)]
    columns = [column for column, path in enumerate(paths) if path.partition(".")[0] in wanted]
    for group in map(footer.row_group, groups):
        for chunk in map(group.column, columns):
            begin = min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset)
            extents.append((begin, begin + chunk.total_compressed_size))
    return extents


@contextmanager
def _open(source: InputFile, place: str | io.RawIOBase | None) -> Iterator[pq.ParquetFile]:
    """Opens the file at ``place``, with the footer that was read before. Raises DamagedFileError."""
    with ExitStack() as opened:
        origin: Any = place
        if isinstance(place, io.RawIOBase):
            origin = opened.enter_context(io.BufferedReader(place, _BUFFER))
        with explained_damage(source):
            file = pq.ParquetFile(
                origin,
                metadata=footer_of(source),
                read_dictionary=repeated_texts(source),
                buffer_size=_BUFFER,  # a mapped file that becomes shorter would end the process
                pre_buffer=False,
            )
        yield opened.enter_context(file)


def _end_of(source: InputFile) -> bytes:
    """The footer as the last bytes of a Parquet file."""
    written = pa.BufferOutputStream()
    footer_of(source).write_metadata_file(written)
    return bytes(written.getvalue())[len(MAGIC) :]


def read_whole(source: InputFile, place: str | bytes, names: list[str]) -> pa.Table:
    """The columns ``names`` of all rows. ``place``: the file's path, or its bytes. Raises DamagedFileError."""
    footer = footer_of(source)
    origin = pa.BufferReader(place) if isinstance(place, bytes) else place
    with explained_damage(source), pq.ParquetFile(origin, metadata=footer, buffer_size=_BUFFER) as file:
        groups = range(footer.num_row_groups)
        return _RowReader(file, groups, names, max(footer.num_rows, 1)).read(footer.num_rows)


_REPEATED = 4
"""Strings count as numbered if they take at most so many bytes a value in the file, dictionary included."""


@lru_cache(maxsize=64)
def repeated_texts(source: InputFile) -> list[str]:
    """The columns of strings that a file stores as numbers of distinct values. Each distinct value is parsed once."""
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
def footer_of(source: InputFile) -> pq.FileMetaData:
    """The footer of a Parquet file. Raises DamagedFileError."""
    with explained_damage(source), ExitStack() as opened:
        if not isinstance(source.path, Address):
            return pq.read_metadata(source.path)
        return pq.read_metadata(opened.enter_context(io.BufferedReader(source.open(source.end), _BUFFER)))


@lru_cache(maxsize=4096)
def schema_of(source: InputFile) -> pa.Schema:
    """The columns of a Parquet file with their types. Files of the same columns share it."""
    return _shared(footer_of(source).schema.to_arrow_schema())


@lru_cache(maxsize=64)
def _shared(schema: pa.Schema) -> pa.Schema:
    return schema


def read_footers(sources: Sequence[InputFile]) -> None:
    """Reads the footers of all Parquet sources, those of a store at the same time, and keeps them."""
    in_threads(footer_of, [source for source in sources if source.format == "parquet"])


@lru_cache(maxsize=64)
def _plain_columns(source: InputFile) -> frozenset[str]:
    """The columns that polars decodes: of plain types, and not long strings that repeat, whose numbers Arrow gives."""
    footer, schema = footer_of(source), schema_of(source)
    numbered = {*repeated_texts(source)} - {*short_texts(footer)}
    return frozenset(field.name for field in schema if is_plain(field.type) and field.name not in numbered)


def plain_columns(source: InputFile, names: Sequence[str]) -> list[str]:
    """Those of ``names`` that polars decodes."""
    return [name for name in names if name in _plain_columns(source)]
