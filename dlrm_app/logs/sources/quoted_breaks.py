"""Line breaks within quotes: hidden from all that cuts a text into lines, and shown again by the parser.

Whether a break lies within quotes depends on all that is before it, so such a text is read from its beginning.
"""

from typing import NamedTuple, Protocol

import numpy as np

from dlrm_app.errors import DataError, Problem
from dlrm_app.kernels.compiled import njit

MAX_FIELD = 1 << 20
"""The most bytes within quotes."""
HIDDEN = 0xFF
"""What stands for a hidden line break; no byte of UTF-8."""
_NOT_UTF8 = 0xFE
"""What a byte HIDDEN of the file itself becomes: no byte of UTF-8 either."""
_NEWLINE = ord("\n")
_FIELD_START, _PLAIN, _QUOTED, _QUOTE_SEEN = range(4)
"""Positions in a record. _QUOTE_SEEN: behind a quote that ends the field, unless another one follows."""


class Quoting(NamedTuple):
    """The bytes between and around the fields of a text whose quoted fields may hold line breaks."""

    delimiter: int
    quote: int


class ReadableText(Protocol):
    """The text of an open file, decompressed."""

    def read(self, size: int, /) -> bytes: ...
    def readinto(self, buffer: memoryview, /) -> int: ...


class TextWithoutBreaks:
    """The text of ``file`` with its line breaks within quotes hidden.

    Raises DataError for a quote that is not closed within MAX_FIELD bytes, with the line where it opens: all rows
    behind it would be lost.
    """

    def __init__(self, file: ReadableText, quoting: Quoting, path: str) -> None:
        self._file = file
        self._quoting = quoting
        self._path = path
        self._state = np.array([_FIELD_START, 0, 1, 1], np.int64)

    def read(self, size: int, /) -> bytes:
        """Up to ``size`` bytes; none only at the end."""
        text = bytearray(size)
        return bytes(text[: self.readinto(memoryview(text))])

    def readinto(self, buffer: memoryview, /) -> int:
        """Reads into ``buffer``; returns the number of bytes, 0 only at the end."""
        count = self._file.readinto(buffer)
        is_too_long = _hide(np.frombuffer(buffer[:count], np.uint8), *self._quoting, self._state)
        position, _, _, first = self._state.tolist()
        if is_too_long or (position == _QUOTED and count == 0 < buffer.nbytes):
            rule = f"is not closed within {MAX_FIELD:,} bytes" if is_too_long else "is never closed"
            cure = "close it, or write a quote within quotes twice"
            raise DataError(Problem(f"{self._path}:{first}", f"opens a quote that {rule}", cure))
        return count


@njit(nogil=True, cache=True)
def _hide(text, delimiter, quote, state):  # type: ignore[no-untyped-def]  # compiled
    """Hides breaks in ``text``, the next piece of a file. Returns True, without reading on, for a field that is too
    long.

    ``state`` int64 [4]: the position in the record, the size of the quoted field so far, the line, that of the last
    quote that was opened.
    """
    position, size, line, first = state[0], state[1], state[2], state[3]
    for at in range(len(text)):
        byte = text[at]
        if byte == HIDDEN:
            text[at] = _NOT_UTF8
        line += byte == _NEWLINE
        if position == _QUOTED:
            size += 1
            if size > MAX_FIELD:
                state[3] = first
                return True
            if byte == quote:
                position = _QUOTE_SEEN
            elif byte == _NEWLINE:
                text[at] = HIDDEN
        elif byte == quote and position in (_FIELD_START, _QUOTE_SEEN):
            if position == _FIELD_START:
                size, first = 0, line
            position = _QUOTED
        else:
            position = _FIELD_START if byte in (delimiter, _NEWLINE) else _PLAIN
    state[0], state[1], state[2], state[3] = position, size, line, first
    return False
