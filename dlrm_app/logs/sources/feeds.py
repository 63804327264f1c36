"""Feeds of units: which units each file has, and the bundles of small files."""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby

import numpy as np
from isal import isal_zlib

from dlrm_app.logs.sources.parquet_units import (
    ParquetFeed,
    ParquetUnit,
    footer_of,
    read_together,
    units_of,
    whole_file,
)
from dlrm_app.logs.sources.source import InputFile
from dlrm_app.logs.sources.store import Address
from dlrm_app.logs.sources.text_units import PADDING, TextFeed, TextUnit
from dlrm_app.logs.sources.units import Block, FileExtent, UnitExtent, UnitName

_AHEAD = 32
"""The number of objects of a store that are fetched while the ones before are read."""
_NEWLINE = ord("\n")


def unit_feeds(
    source: InputFile, columns: Mapping[str, str], unit_bytes: int, is_wanted: Callable[[int], bool]
) -> "Sequence[InputFeed]":
    """Feeds of the units whose numbers are wanted.

    A plain file has a feed for each unit, one that is read in order a feed for all units, wanted or not, and a
    Parquet file one for the units of each run of row groups. ``columns``: the columns of a ParquetFeed.
    """
    if source.format == "parquet":
        rows = units_of(source, len(columns), unit_bytes)
        wanted = filter(is_wanted, range(len(rows)))
        shared = groupby(wanted, lambda number: rows[number].groups)
        return [ParquetFeed(source, columns, unit_bytes, tuple(numbers)) for _, numbers in shared]
    if source.is_read_in_order:
        return [TextFeed(source, unit_bytes)]
    num_units = max(-(-source.bytes // unit_bytes), 1)
    return [TextFeed(source, unit_bytes, unit, unit + 1) for unit in filter(is_wanted, range(num_units))]


@dataclass(frozen=True)
class BundleFeed:
    """One unit: the rows of small files in a row, all of text or all of Parquet with columns of the same types.

    ``columns``: the columns of a ParquetFeed.
    ``header``: True if each text begins with a header.
    ``is_all``: True if there are no other files.
    ``parquet``: the feeds of Parquet objects of a store; none until the feed is prefetched.
    """

    sources: tuple[InputFile, ...]
    columns: Mapping[str, str]
    unit_bytes: int
    header: bool
    is_all: bool
    parquet: tuple[ParquetFeed, ...] = ()

    @property
    def source(self) -> InputFile:
        """The first file."""
        return self.sources[0]

    @property
    def _is_far(self) -> bool:
        return isinstance(self.source.path, Address)

    def prefetched(self) -> "BundleFeed":
        """The same feed; Parquet objects are being fetched, those of text while they are parsed."""
        if self.parquet or self.source.format != "parquet" or not self._is_far:
            return self
        return replace(
            self, parquet=tuple(feed.prefetched() if feed.wanted else feed for feed in self._parquet_feeds())
        )

    def items(self) -> "Generator[InputUnit, None, None]":
        """The bundle. Raises DataError if a file is damaged."""
        yield self._table_unit() if self.source.format == "parquet" else TextBundle(self)

    def texts(self) -> Iterator[Iterator[TextUnit]]:
        """The units of each text; objects of a store are being fetched before their turn."""
        ahead = _AHEAD if self._is_far else 0
        waiting = deque[Iterator[TextUnit]]()
        for source in self.sources:
            waiting.append(TextFeed(source, self.unit_bytes).prefetched().items())
            if len(waiting) > ahead:
                yield waiting.popleft()
        yield from waiting

    def _table_unit(self) -> ParquetUnit:
        table = read_together(self.prefetched().parquet or self._parquet_feeds())
        files = tuple(FileExtent(it.bytes, it.bytes, 0, footer_of(it).num_rows) for it in self.sources)
        size = sum(source.bytes for source in self.sources)
        return ParquetUnit(self.source.index, 0, table, size, self.is_all, files)

    def _parquet_feeds(self) -> tuple[ParquetFeed, ...]:
        return tuple(whole_file(source, self.columns, self.unit_bytes) for source in self.sources)


class TextBundle:
    """The lines of small files in a row, without their headers. They can be read once, like those of a ``TextUnit``."""

    unit = 0
    begins_file = False

    def __init__(self, feed: BundleFeed) -> None:
        self.source, self.may_be_last = feed.sources[0].index, feed.is_all
        self.name = str(UnitName(self.source, 0, feed.sources[-1].index))
        self._feed = feed
        self._blocks: Iterator[Block] | None = None
        self._loaded: Block | None = None
        self._files: list[FileExtent] = []

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

    def finish(self) -> UnitExtent:
        """Reads the rest of the files and returns the extent of all."""
        for _ in self.blocks():
            pass
        return UnitExtent.of_bundle(self.source, self._files, self.may_be_last)

    def _read(self) -> Iterator[Block]:
        for units in self._feed.texts():
            skips, extents, num_lines = self._feed.header, list[UnitExtent](), 0
            for unit in units:
                for block in unit.blocks():
                    lines = _without_first(block) if skips else block
                    skips = False
                    num_lines += int(np.count_nonzero(lines.text[lines.start : lines.stop] == _NEWLINE))
                    yield lines
                extents.append(unit.finish())
            crc = reduce(lambda crc, part: isal_zlib.crc32_combine(crc, part.crc, part.size), extents, 0)
            sizes = sum(part.size for part in extents), sum(part.file_bytes for part in extents)
            self._files.append(FileExtent(*sizes, crc, num_lines))


def _without_first(block: Block) -> Block:
    at = int(np.argmax(block.text[block.start : block.stop] == _NEWLINE))
    return block._replace(start=block.start + at + 1)


LineUnit = TextUnit | TextBundle
InputUnit = LineUnit | ParquetUnit
InputFeed = TextFeed | ParquetFeed | BundleFeed
