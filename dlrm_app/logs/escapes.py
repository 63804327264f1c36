r"""Backslash escapes in the quoted elements of lists in brackets, as JSON and Python write them: ``\"``, ``\n``,
``\u00e9``.

Other backslashes stand for themselves. A surrogate that is not one of a pair has no text: such an element is bad.
"""

import re

import numpy as np

from dlrm_app.kernels.compiled import njit_uncounted

_BACKSLASH, _LOWER_U, _LOWER_X, _ZERO, _LOWER_A = (ord(mark) for mark in "\\ux0a")
_WRITTEN, _MEANT = "\\\"'/bfnrt", "\\\"'/\b\f\n\r\t"
_MARKS, _BYTES = (np.frombuffer(text.encode(), np.uint8) for text in (_WRITTEN, _MEANT))
_HIGH, _LOW, _BEHIND = 0xD800, 0xDC00, 0xE000
"""The first of the high surrogates, of the low ones, and the code point after them."""
_ESCAPE = re.compile(
    r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([\\\"'/bfnrt]))"
)


def unescaped(text: str) -> str:
    """``text`` with its escapes replaced; a lone surrogate becomes NUL, which no value has."""

    def meant(found: re.Match[str]) -> str:
        high, low, code, byte, mark = found.groups()
        if mark:
            return _MEANT[_WRITTEN.index(mark)]
        if high:
            return chr(_paired(int(high, 16), int(low, 16)))
        number = int(code or byte, 16)
        return "\0" if _HIGH <= number < _BEHIND else chr(number)

    return _ESCAPE.sub(meant, text)


def _paired(high: int, low: int) -> int:
    return 0x10000 + ((high - _HIGH) << 10) + low - _LOW


@njit_uncounted
def character_at(text, at, stop, doubled):  # type: ignore[no-untyped-def]  # compiled
    """Returns (a byte or the code point of an escape, the number of its bytes in UTF-8, the place after it).

    ``doubled``: a byte that is written twice. A lone surrogate is NUL.
    """
    if text[at] != _BACKSLASH or at + 1 >= stop:
        return np.int64(text[at]), np.int64(1), at + (2 if text[at] == doubled else 1)
    mark = text[at + 1]
    for place in range(len(_MARKS)):
        if mark == _MARKS[place]:
            return np.int64(_BYTES[place]), np.int64(1), at + (3 if mark == doubled else 2)
    size = 4 if mark == _LOWER_U else 2 if mark == _LOWER_X else 0
    code, behind = _hex_at(text, at + 2, stop, size), at + 2 + size
    if size == 0 or code < 0:
        return np.int64(_BACKSLASH), np.int64(1), at + 1
    if _HIGH <= code < _BEHIND:
        low = np.int64(-1)
        if code < _LOW and behind + 1 < stop and text[behind] == _BACKSLASH and text[behind + 1] == _LOWER_U:
            low = _hex_at(text, behind + 2, stop, 4)
        if low < _LOW or low >= _BEHIND:
            return np.int64(0), np.int64(1), behind
        return 0x10000 + ((code - _HIGH) << 10) + low - _LOW, np.int64(4), behind + 6
    return code, np.int64(1 if code < 0x80 else 2 if code < 0x800 else 3), behind


@njit_uncounted
def _hex_at(text, at, stop, size):  # type: ignore[no-untyped-def]  # compiled
    """The number of ``size`` hex digits; -1 if they are not all there."""
    if at + size > stop:
        return np.int64(-1)
    number = np.int64(0)
    for place in range(at, at + size):
        digit, letter = np.int64(text[place]) - _ZERO, np.int64(text[place] | 32) - _LOWER_A
        if 0 <= letter < 6:
            digit = letter + 10
        if not 0 <= digit < 16 or (digit > 9 and not 0 <= letter < 6):
            return np.int64(-1)
        number = 16 * number + digit
    return number


@njit_uncounted
def byte_of(code, size, place):  # type: ignore[no-untyped-def]  # compiled
    """The byte at ``place`` of the ``size`` bytes of a code point in UTF-8."""
    if size == 1:
        return np.uint8(code)
    bits = (code >> (6 * (size - 1 - place))) & 0x3F
    if place > 0:
        return np.uint8(0x80 | bits)
    return np.uint8(((0xF00 >> size) & 0xFF) | (code >> (6 * (size - 1))))
