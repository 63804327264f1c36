"""Units of Parquet input: runs of row groups, or slices of a row group that is larger than a unit.

Units depend only on the file's footer and the size of units. The slices of one row group are read in order, each column
through a small buffer, so that a row group of any size needs little memory.
"""

import io
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dlrm_app.dataset.arrow import array_of
from dlrm_app.dataset.parquet import MAGIC
from dlrm_app.logs.sources.parquet_decoders import ParquetDecoder, decode_plain, is_plain, short_texts
from dlrm_app.logs.sources.remote_file import RemoteFile
from dlrm_app.logs.sources.source import InputFile, explained_damage
from dlrm_app.logs.sources.store import Address, in_threads
from dlrm_app.logs.sources.units import FileExtent, UnitExtent

_WIDTH = 8
"""The least bytes of a decoded value."""
_ROWS_AT_ONCE = 1 << 15
"""The number of rows of small files that are decoded at once."""
_BUFFER = 1 << 18
"""Bytes of a column that are read at a time."""


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
    """About the bytes of ``num_columns`` columns of a row group, decoded."""
    size: int = group.total_byte_size * num_columns // max(group.num_columns, 1)
    return max(size, _WIDTH * num_columns * group.num_rows)


def decoded_bytes(source: InputFile, num_columns: int) -> int:
    """About the bytes of ``num_columns`` columns of a Parquet file, decoded."""
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
    files: tuple[FileExtent, ...] = ()

    @property
    def name(self) -> str:
        """The unit's name in journals."""
        return self.finish().name

    def detach(self) -> bool:
        """True, because the unit has read all that it needs from its file."""
        return True

    def finish(self) -> UnitExtent:
        """The extent of the unit."""
        if self.files:
            return UnitExtent.of_bundle(self.source, self.files, self.may_be_last)
        return UnitExtent(self.source, self.unit, self.file_bytes, self.file_bytes, 0, self.may_be_last)


@dataclass(frozen=True)
class ParquetFeed:
    """Units ``wanted`` (at least one) of a source, which all lie in the same row groups.

    ``columns``: the columns to read, in this order: name → name in the file, or key of its partition.
    ``fetched``: the open object of a store, which ``items`` reads; None until the feed is prefetched, and for local
    files.
    ``is_bundled``: True if the rows join those of other files. Columns then have the same types in all files.
    """

    source: InputFile
    columns: Mapping[str, str]
    unit_bytes: int
    wanted: tuple[int, ...]
    is_bundled: bool = False
    fetched: io.RawIOBase | None = field(default=None, repr=False, compare=False)

    def prefetched(self) -> "ParquetFeed":
        """The same feed; an object of a store is being fetched."""
        if self.fetched is not None or not isinstance(self.source.path, Address):
            return self
        return replace(self, fetched=self.source.open(*_extents(self.source, self._groups, self.stored)))

    @property
    def _units(self) -> list[UnitRows]:
        return units_of(self.source, len(self.columns), self.unit_bytes)

    @property
    def _groups(self) -> range:
        return self._units[self.wanted[0]].groups

    @cached_property
    def stored(self) -> list[str]:
        """The columns that the file has, by their names there."""
        names = {*schema_of(self.source).names}
        return list(dict.fromkeys(name for name in self.columns.values() if name in names))

    def items(self) -> Generator[ParquetUnit, None, None]:
        """The units in order. Raises DataError if the file is damaged."""
        units, last = self._units, len(self._units) - 1
        with self._opened() as decoder:
            for number in self.wanted:
                unit = units[number]
                with explained_damage(self.source):
                    table = decoder.read(unit.start, unit.stop)
                table = with_keys(table, self.columns, [self.source], [len(table)])
                yield ParquetUnit(self.source.index, number, table, unit.file_bytes, number == last)
                del table  # so that it is freed before the next one is read

    @contextmanager
    def _opened(self) -> Iterator[ParquetDecoder]:
        fetched = self.prefetched().fetched
        footer, groups = footer_of(self.source), self._groups
        wants_polars = polars_can_decode if self.is_bundled else polars_is_preferred
        plain = wants_polars(self.source, self.stored)
        numbered = [] if self.is_bundled else repeated_texts(self.source)
        with ExitStack() as opened:
            place: str | None = self.source.path
            if isinstance(fetched, RemoteFile):
                opened.enter_context(fetched)
                place = opened.enter_context(fetched.in_memory(_end_of(self.source))) if plain else None
            open_file = partial(_open, self.source, place or fetched, numbered)
            place = place if plain else None
            yield opened.enter_context(ParquetDecoder(footer, open_file, place, self.stored, groups))


def whole_file(source: InputFile, columns: Mapping[str, str], unit_bytes: int) -> ParquetFeed:
    """The feed of a file that is one unit at most, for a bundle."""
    units = range(len(units_of(source, len(columns), unit_bytes)))
    return ParquetFeed(source, columns, unit_bytes, tuple(units), is_bundled=True)


def read_together(feeds: Sequence[ParquetFeed]) -> pa.Table:
    """The rows of whole files with columns of the same types. polars decodes several local ones at a time."""
    first, counts = feeds[0], [footer_of(feed.source).num_rows for feed in feeds]
    tables = [with_keys(schema_of(first.source).empty_table(), first.columns, [first.source], [0])]
    is_far = isinstance(first.source.path, Address)
    begin = 0
    for end in range(1, len(feeds) + 1):  # some at a time: polars keeps what it decodes several times
        if (rows := sum(counts[begin:end])) < _ROWS_AT_ONCE and end < len(feeds):
            continue
        some, table = feeds[begin:end], None
        if rows and not is_far and polars_can_decode(first.source, first.stored):
            table = decode_plain([feed.source.path for feed in some], first.stored, 0, rows)
        if table is not None:
            tables.append(with_keys(table, first.columns, [feed.source for feed in some], counts[begin:end]))
        else:
            tables += [unit.table for feed in some if feed.wanted for unit in feed.items()]
        begin = end
    kinds = {table.schema for table in tables[1:]}
    if len(kinds) > 1:  # polars has refused some, and gives strings as views
        tables = [table.cast(tables[0].schema) for table in tables]
    return pa.concat_tables(tables[1:] or tables)


def with_keys(
    table: pa.Table, columns: Mapping[str, str], sources: Sequence[InputFile], counts: Sequence[int]
) -> pa.Table:
    """The ``columns`` of ``table`` under their names; a key of partitions has one value in all rows of a source.

    ``counts``: the number of each source's rows.
    """
    stored = dict(zip(table.column_names, table.columns, strict=True))
    which = array_of(np.repeat(np.arange(len(counts), dtype=np.int32), counts))

    def partition_of(key: str) -> pa.DictionaryArray:
        values = pa.array([source.partition.get(key) for source in sources], pa.string())
        return pa.DictionaryArray.from_arrays(which, values)

    arrays = [stored[name] if name in stored else partition_of(name) for name in columns.values()]
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
def _open(
    source: InputFile, place: str | io.RawIOBase | None, numbered: list[str]
) -> Iterator[pq.ParquetFile]:
    """Opens the file at ``place``, with the footer that was read before.

    ``numbered``: the columns of strings whose distinct values and numbers are kept apart. Raises DamagedFileError.
    """
    with ExitStack() as opened:
        origin: object = place
        if isinstance(place, io.RawIOBase):
            origin = opened.enter_context(io.BufferedReader(place, _BUFFER))
        with explained_damage(source):
            # with a buffer: a mapped file that becomes shorter would end the process
            file = open_parquet(source, origin, read_dictionary=numbered, buffer_size=_BUFFER)
        yield opened.enter_context(file)


def open_parquet(source: InputFile, place: object, **options: object) -> pq.ParquetFile:
    """Opens the Parquet file at ``place``, with the footer that was read before.

    Times of Spark's old type INT96 are microseconds: Arrow's nanoseconds would make 1816 of the year 9999, without an
    error.
    """
    options |= {"metadata": footer_of(source), "coerce_int96_timestamp_unit": "us", "pre_buffer": False}
    return pq.ParquetFile(place, **options)


def _end_of(source: InputFile) -> bytes:
    """The footer as the last bytes of a Parquet file."""
    written = pa.BufferOutputStream()
    footer_of(source).write_metadata_file(written)
    return bytes(written.getvalue())[len(MAGIC) :]


_REPEATED = 4
"""The most bytes a value of strings that count as numbered, in the file, dictionary included."""


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
    """The columns of plain types, except long strings that repeat, which Arrow can give as numbers of a dictionary."""
    schema, numbered = schema_of(source), {*repeated_texts(source)}
    if numbered:
        numbered -= {*short_texts(footer_of(source))}
    return frozenset(field.name for field in schema if is_plain(field.type) and field.name not in numbered)


def polars_can_decode(source: InputFile, names: Sequence[str]) -> bool:
    """True if there are ``names`` and polars can decode these columns of the file."""
    schema = schema_of(source)
    return bool(names) and all(is_plain(schema.field(name).type) for name in names)


def polars_is_preferred(source: InputFile, names: Sequence[str]) -> bool:
    """True if polars can decode these columns, and faster than Arrow: long strings that repeat are left to Arrow."""
    return bool(names) and _plain_columns(source).issuperset(names)
