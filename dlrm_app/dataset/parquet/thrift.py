"""Values in Thrift's compact protocol, as Parquet's headers and footer want them, each with the code of its type.

A value may have slots, left open for numbers. What headers say is mostly the same, so they are made once, and a row
group's are filled in one compiled call: by interpreted code they would take longer than packing its values does.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from dlrm_app.kernels.compiled import njit

_LONGEST = 10
"""Bytes of a number of 64 bits."""
_LOW, _MORE, _7 = np.uint64(0x7F), np.uint8(0x80), np.uint64(7)

Value = tuple[int, tuple[bytes, ...]]
"""(type code, the bytes between the slots: one piece more than there are slots)."""

_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12

SLOT: Value = _I32, (b"", b"")
LONG_SLOT: Value = _I64, (b"", b"")


def varint(number: int) -> bytes:
    """``number`` in seven bits a byte, the lowest first; all but the last byte have their high bit set."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _folded(number: int) -> bytes:
    """The varint of a signed number, folded so that small ones are short: 0, -1, 1, -2 become 0, 1, 2, 3."""
    return varint(number << 1 ^ number >> 63)


def i32(number: int) -> Value:
    return _I32, (_folded(number),)


def i64(number: int) -> Value:
    return _I64, (_folded(number),)


def text(value: str) -> Value:
    data = value.encode()
    return _BINARY, (varint(len(data)) + data,)


def items(values: Sequence[Value]) -> Value:
    """A list of values of one type; an empty one is of structs."""
    kind = values[0][0] if values else _STRUCT
    head = (
        bytes([len(values) << 4 | kind]) if len(values) < 15 else bytes([0xF0 | kind]) + varint(len(values))
    )
    return _LIST, _joined([(head,), *(data for _, data in values)])


def struct(fields: Mapping[int, Value]) -> Value:
    """``fields`` by their numbers, which must ascend by less than 16."""
    parts: list[tuple[bytes, ...]] = []
    last = 0
    for number, (kind, data) in fields.items():
        parts += [(bytes([number - last << 4 | kind]),), data]
        last = number
    return _STRUCT, _joined([*parts, (b"\0",)])


def _joined(parts: Sequence[tuple[bytes, ...]]) -> tuple[bytes, ...]:
    """One behind the other; pieces without a slot between them become one."""
    pieces: list[list[bytes]] = [[]]
    for part in parts:
        pieces[-1].append(part[0])
        pieces += [[piece] for piece in part[1:]]
    return tuple(b"".join(piece) for piece in pieces)


def data_of(value: Value) -> bytes:
    """The bytes of a value without slots."""
    (data,) = value[1]
    return data


class Forms:
    """Structs with slots, to be filled many at a time."""

    def __init__(self, structs: Sequence[Value]) -> None:
        pieces = [piece for _, data in structs for piece in data]
        self._text = np.frombuffer(b"".join(pieces), np.uint8)
        self._bounds = np.cumsum([0, *map(len, pieces)])
        self._firsts = np.cumsum([0, *(len(data) for _, data in structs)])
        self._longest = max(sum(map(len, data)) for _, data in structs)

    def fill(self, which: Sequence[int], numbers: Sequence[int]) -> list[bytes]:
        """For each of ``which`` the bytes of that struct, with the next of ``numbers`` in its slots."""
        out = np.empty(len(which) * self._longest + len(numbers) * _LONGEST, np.uint8)
        ends = np.zeros(len(which) + 1, np.int64)
        wanted, given = np.array(which, np.int64), np.array(numbers, np.int64)
        _fill(self._text, self._bounds, self._firsts, wanted, given, out, ends)
        data = out[: ends[-1]].tobytes()
        return [data[start:end] for start, end in pairwise(ends.tolist())]


@njit(nogil=True, cache=True)
def _fill(text, bounds, firsts, which, numbers, out, ends):  # type: ignore[no-untyped-def]  # compiled
    at = used = 0
    for i in range(len(which)):
        first = firsts[which[i]]
        for piece in range(first, firsts[which[i] + 1]):
            if piece > first:
                left = np.uint64((numbers[used] << 1) ^ (numbers[used] >> 63))
                while left > _LOW:
                    out[at] = np.uint8(left & _LOW) | _MORE
                    left >>= _7
                    at += 1
                out[at] = np.uint8(left)
                at += 1
                used += 1
            for k in range(bounds[piece], bounds[piece + 1]):
                out[at] = text[k]
                at += 1
        ends[i + 1] = at


def filled(data: bytes) -> Value:
    """A struct out of its bytes."""
    return _STRUCT, (data,)
