"""Units of work: fixed ranges of a source's text, each with the lines that start in it.

A unit's lines depend only on the text and the size of units, not on compression, threads or who reads it. Plain
files are read at any unit; gzip files from their start on, unit after unit.
"""

import io
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from isal import igzip, isal_zlib
from numpy.typing import NDArray

from dlrm_app.errors import DataError
from dlrm_app.preprocess.fields import MAX_LINE
from dlrm_app.preprocess.lines import PADDING
from dlrm_app.preprocess.source import Source

_STEP = 1 << 16
_DAMAGED: Any = (igzip.BadGzipFile, isal_zlib.error, zlib.error)
_NEWLINE = b"\n"
_local = threading.local()


@dataclass(frozen=True, slots=True)
class UnitText:
    """The lines ``text[start:stop]`` that start in unit ``unit`` of a source; ``size`` and ``crc`` are of its range.

    ``is_last``: the source ends with this unit.
    """

    source: int
    unit: int
    text: NDArray[np.uint8]
    start: int
    stop: int
    size: int
    crc: int
    is_last: bool


class _File(Protocol):
    def readinto(self, buffer: memoryview, /) -> int: ...
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class TextFeed:
    """Units ``first`` to ``last`` (exclusive) of a source, to be read one after the other."""

    source: Source
    unit_bytes: int
    first: int = 0
    last: int | None = None
    skip: frozenset[int] = frozenset()
    """Units of a gzip file that need not be given, only passed."""

    def items(self) -> Iterator[UnitText]:
        """The units in order; a text is good until the same thread asks for another one.

        Raises DataError if the file is damaged.
        """
        try:
            with Path(self.source.path).open("rb", buffering=0) as raw:
                if self.source.is_gzip:
                    with igzip.IGzipFile(fileobj=raw, mode="rb") as file:
                        yield from self._read(file)
                else:
                    raw.seek(max(self.first * self.unit_bytes - 1, 0))
                    yield from self._read(raw)
        except EOFError as error:
            raise DataError(
                f"{self.source.path} is cut short: its gzip data ends before its end mark; copy or download it again"
            ) from error
        except _DAMAGED as error:
            raise DataError(f"{self.source.path} is damaged: {error}; copy or download it again") from error

    def _read(self, file: _File) -> Iterator[UnitText]:
        # before the unit's first byte stands the byte before it, which tells whether a line starts there
        unit = 0 if self.source.is_gzip else self.first
        before = file.read(1) if unit else _NEWLINE
        pending = b""
        while self.last is None or unit < self.last:
            text = _own_buffer(1 + self.unit_bytes + MAX_LINE + _STEP + 1 + PADDING)
            text[0] = before[0]
            filled = _fill(file, text, pending, self.unit_bytes)
            pending = _read_line_end(file, pending[self.unit_bytes :]) if filled == self.unit_bytes else b""
            if unit >= self.first and unit not in self.skip:
                yield _cut(self.source.place, unit, text, filled, pending)
            before = bytes(text[filled : filled + 1])
            unit += 1
            if not pending:
                return


def _own_buffer(size: int) -> NDArray[np.uint8]:
    """The calling thread's buffer: fresh memory for every unit would cost as much time as reading it."""
    buffer: NDArray[np.uint8] | None = getattr(_local, "buffer", None)
    if buffer is None or len(buffer) != size:
        buffer = _local.buffer = np.empty(size, np.uint8)
    return buffer


def _fill(file: _File, text: NDArray[np.uint8], pending: bytes, size: int) -> int:
    """Puts up to ``size`` bytes, ``pending`` first, behind text[0]; gives how many there were."""
    filled = min(len(pending), size)
    text[1 : 1 + filled] = np.frombuffer(pending, np.uint8, filled)
    view = memoryview(text)  # type: ignore[arg-type]  # numpy's types declare no Buffer before Python 3.12
    while filled < size:
        count = file.readinto(view[1 + filled : 1 + size])
        if not count:
            break
        filled += count
    return filled


def _read_line_end(file: _File, pending: bytes) -> bytes:
    """``pending`` and as much of the file as holds the next line end, or more than a line can have."""
    pieces = io.BytesIO()
    pieces.write(pending)
    found = _NEWLINE in pending
    while not found and pieces.tell() <= MAX_LINE:
        piece = file.read(_STEP)
        if not piece:
            break
        pieces.write(piece)
        found = _NEWLINE in piece
    return pieces.getvalue()


def _cut(source: int, unit: int, text: NDArray[np.uint8], size: int, pending: bytes) -> UnitText:
    """The lines that start in text[1:1 + size]; ``pending`` is the text behind it."""
    view = memoryview(text)  # type: ignore[arg-type]  # as above
    crc = isal_zlib.crc32(view[1 : 1 + size])
    start = _behind_newline(text, 0, size)
    if start > size:  # no line starts here
        return UnitText(source, unit, text, 1, 1, size, crc, not pending)
    end = pending.find(_NEWLINE)
    if text[size] == _NEWLINE[0]:
        stop = 1 + size
    else:
        tail = pending[: MAX_LINE + 1] if end < 0 else pending[:end]
        stop = 1 + size + len(tail)
        text[1 + size : stop] = np.frombuffer(tail, np.uint8)
        text[stop] = _NEWLINE[0]
        stop += 1
    text[stop : stop + PADDING] = 0
    return UnitText(source, unit, text, start, stop, size, crc, not pending)


def _behind_newline(text: NDArray[np.uint8], start: int, stop: int) -> int:
    """The position behind the first line end in text[start:stop], or stop + 1 if there is none."""
    for at in range(start, stop, _STEP):
        found = text[at : min(at + _STEP, stop)].tobytes().find(_NEWLINE)
        if found >= 0:
            return at + found + 1
    return stop + 1
