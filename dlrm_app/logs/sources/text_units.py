"""Units of text: fixed ranges of a file. A unit has the lines that start in its range.

Its lines depend only on the text and the size of units, not on compression, threads or processes. Plain files can be
read from any unit on; compressed files, and those with line breaks within quotes, are read from the start, unit after
unit.
"""

import io
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from isal import isal_zlib

from dlrm_app.logs.sources.quoted_breaks import ReadableText
from dlrm_app.logs.sources.source import InputFile, explained_damage, open_text
from dlrm_app.logs.sources.store import Address
from dlrm_app.logs.sources.units import Block, UnitExtent, unit_name

MAX_LINE = 1 << 20
"""The most bytes of a line. Longer lines are rejected, so that a file without line ends cannot fill the memory."""
PADDING = 64
"""Bytes that can be read after the end of a block; the parser reads this many in one step."""
PIECE_BYTES = 1 << 20
"""Bytes to read at a time. They stay in a cache until they are parsed, and threads rarely wait for one another."""
BEGINNING_BYTES = 1 << 16
_NEWLINE = b"\n"
_local = threading.local()


class TextUnit:
    """The lines that start in unit ``unit`` of a source. They can be read once.

    The first call decides how they are read: ``blocks`` a piece of the file at a time, ``load`` all in one block.
    ``finish`` may be called at any time.
    """

    def __init__(self, rest: "_Rest", unit: int, unit_bytes: int) -> None:
        self.source, self.unit = rest.source.index, unit
        self.name = unit_name(self.source, unit)
        self._rest = rest
        self._unit_bytes = unit_bytes
        self._blocks: Iterator[Block] | None = None
        self._loaded: Block | None = None
        self._size = self._crc = 0
        self._range: UnitExtent | None = None

    @property
    def begins_file(self) -> bool:
        """True if its first line is the first one of the file."""
        return self.unit == 0

    @property
    def may_be_last(self) -> bool:
        """False if the source is known to be longer. Available before the unit is read."""
        slack = 1.01 if self._rest.source.is_compressed else 1  # incompressible text grows a little
        return self._rest.source.bytes <= slack * (self.unit + 1) * self._unit_bytes

    def blocks(self) -> Iterator[Block]:
        """The remaining lines, some at a time. A block is valid until the next one is requested.

        Raises DataError if the file is damaged.
        """
        if self._blocks is None:
            self._blocks = self._read(PIECE_BYTES)
        return self._blocks

    def load(self) -> Block:
        """All lines in one block, which ``blocks`` then yields too. Valid until the same thread reads another unit.

        Call it before ``blocks``. Raises DataError if the file is damaged.
        """
        if self._loaded is None:
            assert self._blocks is None, "the unit is being read in blocks"
            self._loaded = Block(np.zeros(PADDING, np.uint8), 0, 0)
            for block in self._read(self._unit_bytes):
                self._loaded = block
            self._blocks = iter([self._loaded])
        return self._loaded

    def detach(self) -> bool:
        """Loads the unit of a file that is read in order, so that another thread can continue the file.

        Returns True if all of the unit is read.
        """
        if self._rest.source.is_read_in_order:
            self.load()
        return self._range is not None

    def finish(self) -> UnitExtent:
        """Reads the rest of the unit and returns its extent."""
        if self._range is None:
            for _ in self.blocks():
                pass
        assert self._range is not None, "a damaged unit has no range"
        return self._range

    def _read(self, step: int) -> Iterator[Block]:
        rest = self._rest
        begin = rest.position()
        text = _thread_buffer(step + 2 * (MAX_LINE + 2) + PADDING)
        view, array = memoryview(text), np.frombuffer(text, np.uint8)
        filled, is_inside = 0, rest.before != _NEWLINE  # inside a line of an earlier unit
        while True:
            wanted = min(step, self._unit_bytes - self._size)
            count = self._take(view[filled : filled + wanted])
            start, filled = 0, filled + count
            if is_inside:
                start = text.find(_NEWLINE, filled - count, filled) + 1
                is_inside = start == 0
                filled = 0 if is_inside else filled
            if count < wanted or self._size == self._unit_bytes:
                break
            stop = text.rfind(_NEWLINE, start, filled) + 1
            if stop:
                yield Block(array, start, stop)
                start = stop
            view[: filled - start] = view[start:filled]
            filled = min(filled - start, MAX_LINE + 1)  # enough to reject a line
        following = rest.peek_line()
        if filled > start and text[filled - 1 : filled] != _NEWLINE:
            end = following.find(_NEWLINE)
            tail = following[: MAX_LINE + 1 if end < 0 else end] + _NEWLINE
            text[filled : filled + len(tail)] = tail
            filled += len(tail)
        file_bytes = rest.position() - begin if rest.source.is_read_in_order else self._size
        self._range = UnitExtent(self.source, self.unit, self._size, file_bytes, self._crc, not following)
        if filled > start:
            yield Block(array, start, filled)

    def _take(self, view: memoryview) -> int:
        """Fills ``view`` while there is text; returns the number of bytes and counts them."""
        filled = 0
        while filled < len(view):
            count = self._rest.readinto(view[filled : filled + PIECE_BYTES])
            if not count:
                break
            self._crc = isal_zlib.crc32(view[filled : filled + count], self._crc)
            filled += count
        self._size += filled
        return filled


class _Rest:
    """The text of a source from some position on. ``before``: the byte before it.

    ``position`` returns how many bytes of the file have been read.
    """

    def __init__(
        self, source: InputFile, file: ReadableText, before: bytes, position: Callable[[], int]
    ) -> None:
        self.source = source
        self.before = before
        self.position = position
        self._file = file
        self._peeked = b""

    def readinto(self, view: memoryview) -> int:
        """Reads into ``view``; returns the number of bytes, 0 only at the end."""
        count = len(self._peeked[: len(view)])
        if count:
            view[:count] = self._peeked[:count]
            self._peeked = self._peeked[count:]
        else:
            with explained_damage(self.source):
                count = self._file.readinto(view)
        if count:
            self.before = bytes(view[count - 1 : count])
        return count

    def peek_line(self) -> bytes:
        """The next bytes, up to the next line end or beyond the longest line; they are not consumed."""
        pieces = [self._peeked]
        while _NEWLINE not in pieces[-1] and sum(map(len, pieces)) <= MAX_LINE:
            with explained_damage(self.source):
                pieces.append(self._file.read(PIECE_BYTES))
            if not pieces[-1]:
                break
        self._peeked = b"".join(pieces)
        return self._peeked


@dataclass(frozen=True)
class TextFeed:
    """Units ``first`` to ``last`` (exclusive) of a source. Some sources are read from their beginning."""

    source: InputFile
    unit_bytes: int
    first: int = 0
    last: int | None = None
    skip: frozenset[int] = frozenset()
    """Units to skip of a file that is read in order."""
    fetched: io.RawIOBase | None = field(default=None, repr=False, compare=False)
    """The open object of a store; None until the feed is prefetched, and for local files."""

    def prefetched(self) -> "TextFeed":
        """The same feed; an object of a store is being fetched."""
        if self.fetched is not None or not isinstance(self.source.path, Address):
            return self
        return replace(self, fetched=self.source.open(self._extent, in_order=True))

    def items(self) -> Generator[TextUnit, None, None]:
        """The units in order. A unit that is not read or detached before the next one is requested is lost.

        Raises DataError if the file is damaged.
        """
        with (
            self.fetched or self.source.open(self._extent, in_order=True) as raw,
            open_text(raw, self.source) as file,
        ):
            if self.first:
                raw.seek(self._extent[0])
            before = raw.read(1) if self.first else _NEWLINE
            yield from self.cut(_Rest(self.source, file, before, raw.tell), self.first)

    @property
    def _extent(self) -> tuple[int, int]:
        begin = max(self.first * self.unit_bytes - 1, 0)
        end = self.source.bytes
        if self.last is not None and not self.source.is_read_in_order:
            end = min(end, self.last * self.unit_bytes + BEGINNING_BYTES)  # with the rest of the last line
        return begin, end

    def cut(self, rest: _Rest, unit: int) -> Iterator[TextUnit]:
        """Cuts ``rest``, which begins with unit ``unit``, into units."""
        while self.last is None or unit < self.last:
            text = TextUnit(rest, unit, self.unit_bytes)
            if unit not in self.skip:
                yield text
            unit += 1
            if text.finish().is_last:
                return


def _thread_buffer(size: int) -> bytearray:
    """The buffer of the calling thread. New memory for every unit would take as long as reading the unit."""
    buffer: bytearray | None = getattr(_local, "buffer", None)
    if buffer is None or len(buffer) != size:
        buffer = _local.buffer = bytearray(size)
    return buffer


def beginning_of(source: InputFile) -> TextFeed:
    """A feed of the first few lines, as one unit."""
    return TextFeed(source, BEGINNING_BYTES, last=1)
