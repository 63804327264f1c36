"""Bundles: small files in a row that are read as one unit, because each unit costs a journal's entry and a shard.

A file that is as large as a unit is read by itself. What a bundle holds depends only on the files' sizes and columns.
"""

import io
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
from isal import isal_zlib

from dlrm_app.dataset.arrow import array_of
from dlrm_app.logs.sources.parquet_units import (
    FEW_ROWS,
    ParquetFeed,
    ParquetUnit,
    footer_of,
    read_whole,
    schema_of,
)
from dlrm_app.logs.sources.plain_parquet import decode_plain, is_plain
from dlrm_app.logs.sources.source import InputFile
from dlrm_app.logs.sources.store import Address
from dlrm_app.logs.sources.unit_text import (
    PADDING,
    Block,
    FileRange,
    TextFeed,
    TextRange,
    UnitName,
    UnitText,
)

_AHEAD = 32
"""The number of objects of a store that are fetched while the ones before are read."""
_ROWS_AT_ONCE = 1 << 15
"""The number of rows of Parquet files that are decoded at once."""
_NEWLINE = ord("\n")


def bundle_files(
    files: Sequence[InputFile],
    size_of: Callable[[InputFile], int],
    kind_of: Callable[[InputFile], Any],
    most: int,
) -> list[tuple[InputFile, ...]]:
    """``files`` in order; those in a row with at most ``most`` bytes together and of the same kind are joined."""
    bundles: list[list[InputFile]] = []
    total, kind = 0, None
    for file in files:
        size, its_kind = size_of(file), kind_of(file)
        follows = bool(bundles) and bundles[-1][-1].index + 1 == file.index
        if follows and total + size <= most and kind == its_kind:
            bundles[-1].append(file)
            total += size
        else:
            bundles.append([file])
            total, kind = size, its_kind
    return [tuple(bundle) for bundle in bundles]


class BundleText:
    """The lines of small files in a row, without their headers. They can be read once, like those of a ``UnitText``."""

    unit = 0
    begins_file = False

    def __init__(self, feed: "TextBundleFeed") -> None:
        self.source, self.may_be_last = feed.sources[0].index, feed.is_all
        self.name = str(UnitName(self.source, 0, feed.sources[-1].index))
        self._feed = feed
        self._blocks: Iterator[Block] | None = None
        self._loaded: Block | None = None
        self._files: list[FileRange] = []

    def blocks(self) -> Iterator[Block]:
        """The remaining lines, some at a time. A block is valid until the next one is requested.

        Raises DataError if a file is damaged.
        """
        if self._blocks is None:
            self._blocks = self._read()
        return self._blocks

    def load(self) -> Block:
        """All lines in one block, which ``blocks`` then yields too. Call it before ``blocks``."""
        if self._loaded is None:
            assert self._blocks is None, "the bundle is being read in blocks"
            parts = [block.text[block.start : block.stop].copy() for block in self._read()]
            text = np.concatenate([*parts, np.zeros(PADDING, np.uint8)])
            self._loaded = Block(text, 0, len(text) - PADDING)
            self._blocks = iter([self._loaded] if parts else [])
        return self._loaded

    def detach(self) -> bool:
        """False: no other bundle needs its files."""
        return False

    def finish(self) -> TextRange:
        """Reads the rest of the files and returns the extent of all."""
        for _ in self.blocks():
            pass
        return TextRange.of_bundle(self.source, self._files, self.may_be_last)

    def _read(self) -> Iterator[Block]:
        for units in self._feed.opened():
            skips, extents, num_lines = self._feed.header, list[TextRange](), 0
            for unit in units:
                for block in unit.blocks():
                    lines = _without_first(block) if skips else block
                    skips = False
                    num_lines += int(np.count_nonzero(lines.text[lines.start : lines.stop] == _NEWLINE))
                    yield lines
                extents.append(unit.finish())
            crc = reduce(lambda crc, part: isal_zlib.crc32_combine(crc, part.crc, part.size), extents, 0)
            sizes = sum(part.size for part in extents), sum(part.file_bytes for part in extents)
            self._files.append(FileRange(*sizes, crc, num_lines))


def _without_first(block: Block) -> Block:
    """The lines of ``block`` behind its first one."""
    at = int(np.argmax(block.text[block.start : block.stop] == _NEWLINE))
    return block._replace(start=block.start + at + 1)


@dataclass(frozen=True)
class TextBundleFeed:
    """One bundle of text files. ``header``: each begins with one; ``is_all``: there are no other files."""

    sources: tuple[InputFile, ...]
    unit_bytes: int
    header: bool
    is_all: bool

    @property
    def source(self) -> InputFile:
        """The first file."""
        return self.sources[0]

    def prefetched(self) -> "TextBundleFeed":
        """The feed itself: its files are read while they are parsed."""
        return self

    def items(self) -> Generator[BundleText, None, None]:
        """The bundle."""
        yield BundleText(self)

    def opened(self) -> Iterator[Iterator[UnitText]]:
        """The units of each file; objects of a store are being fetched before their turn."""
        ahead = _AHEAD if isinstance(self.source.path, Address) else 0
        waiting = deque[Iterator[UnitText]]()
        for source in self.sources:
            waiting.append(TextFeed(source, self.unit_bytes).prefetched().items())
            if len(waiting) > ahead:
                yield waiting.popleft()
        yield from waiting


@dataclass(frozen=True)
class ParquetBundleFeed:
    """One bundle of Parquet files, all with the same ``columns`` (see ``ParquetFeed``), of the same types.

    ``fetched``: the open objects of a store; none until the feed is prefetched, and for local files.
    """

    sources: tuple[InputFile, ...]
    columns: Mapping[str, str]
    is_all: bool
    fetched: tuple[io.RawIOBase, ...] = field(default=(), repr=False, compare=False)

    @property
    def source(self) -> InputFile:
        """The first file."""
        return self.sources[0]

    def prefetched(self) -> "ParquetBundleFeed":
        """The same feed; objects of a store are being fetched."""
        if self.fetched or not isinstance(self.source.path, Address):
            return self
        return replace(self, fetched=tuple(source.open((0, source.bytes)) for source in self.sources))

    def items(self) -> Generator[ParquetUnit, None, None]:
        """The bundle. Raises DataError if a file is damaged."""
        counts = [footer_of(source).num_rows for source in self.sources]
        files = tuple(FileRange(s.bytes, s.bytes, 0, n) for s, n in zip(self.sources, counts, strict=True))
        size = sum(source.bytes for source in self.sources)
        yield ParquetUnit(self.source.index, 0, self._read(counts), size, self.is_all, files)

    def _read(self, counts: Sequence[int]) -> pa.Table:
        """The rows of all files; ``counts``: the number of each one's rows."""
        places: list[Any] = [source.path for source in self.sources]
        if isinstance(self.source.path, Address):
            places = [_all_bytes(file) for file in self.prefetched().fetched]
        schema = schema_of(self.source)
        types = dict(zip(schema.names, schema.types, strict=True))
        stored = [name for name in dict.fromkeys(self.columns.values()) if name in types]
        plain = [name for name in stored if sum(counts) >= FEW_ROWS and is_plain(types[name])]
        decoded = self._decode(places, plain, counts) if plain else None
        if decoded is None:  # Arrow tells what is wrong
            plain = []
        done = {*plain}
        others = [name for name in stored if name not in done]
        files = zip(self.sources, places, strict=True)
        tables = [read_whole(source, place, others) for source, place in files if others]
        arrays = {
            name: pa.chunked_array([chunk for table in its for chunk in table[name].chunks])
            for names, its in ((plain, decoded or []), (others, tables))
            for name in names
        }
        columns = [
            arrays[name] if name in arrays else self._partition(name, counts)
            for name in self.columns.values()
        ]
        return pa.Table.from_arrays(columns, list(self.columns))

    def _decode(
        self, places: list[str] | list[bytes], names: Sequence[str], counts: Sequence[int]
    ) -> list[pa.Table] | None:
        """The columns ``names`` of all files, of some in a table; None for what polars refuses.

        polars keeps what it decodes several times at once, so it decodes only some files at a time.
        """
        tables, first = [], 0
        for stop in range(1, len(places) + 1):
            rows = sum(counts[first:stop])
            if rows >= _ROWS_AT_ONCE or stop == len(places):
                table = decode_plain(places[first:stop], names, 0, rows)
                if table is None:
                    return None
                tables.append(table)
                first = stop
        return tables

    def _partition(self, key: str, counts: Sequence[int]) -> pa.DictionaryArray:
        """The column of a ``key`` of partitions: one value for all rows of a file."""
        values = pa.array([source.partition.get(key) for source in self.sources], pa.string())
        numbers = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        return pa.DictionaryArray.from_arrays(array_of(numbers), values)


def _all_bytes(file: io.RawIOBase) -> bytes:
    with file:
        return file.readall()


LineUnit = UnitText | BundleText
InputUnit = LineUnit | ParquetUnit
InputFeed = TextFeed | TextBundleFeed | ParquetFeed | ParquetBundleFeed
