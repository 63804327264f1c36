"""Whole numbers in seven bits a byte, the lowest first; all but the last byte have their high bit set.

Signed ones are folded before, so that small ones are short: 0, -1, 1, -2 become 0, 1, 2, 3.
"""

import numpy as np

from dlrm_app.compiled import njit

LONGEST = 10
"""Bytes of a number of 64 bits."""

_LOW, _MORE, _7 = np.uint64(0x7F), np.uint8(0x80), np.uint64(7)


def varint(number: int) -> bytes:
    """The bytes of ``number``, which is not negative."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def signed_varint(number: int) -> bytes:
    """The bytes of ``number``, of 64 bits at most, folded."""
    return varint(number << 1 ^ number >> 63)


@njit(nogil=True, cache=True)
def put_varint(out, at, number):  # type: ignore[no-untyped-def]  # compiled
    """Puts ``number`` at out[at:]: the position behind it."""
    left = np.uint64(number)
    while left > _LOW:
        out[at] = np.uint8(left & _LOW) | _MORE
        left >>= _7
        at += 1
    out[at] = np.uint8(left)
    return at + 1


@njit(nogil=True, cache=True)
def put_signed(out, at, number):  # type: ignore[no-untyped-def]  # compiled
    """Puts ``number`` int64, folded, at out[at:]: the position behind it."""
    return put_varint(out, at, np.uint64((number << 1) ^ (number >> 63)))
