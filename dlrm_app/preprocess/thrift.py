"""Values in Thrift's compact protocol, as Parquet's headers and footer want them, each with the code of its type.

A value may have slots, left open for numbers that are filled in later: what most headers say is always the same.
"""

from collections.abc import Mapping, Sequence

Value = tuple[int, tuple[bytes, ...]]
"""(type code, the bytes between the slots: one piece more than there are slots)."""

_BYTES = [bytes([number]) for number in range(256)]
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12

I32_SLOT: Value = _I32, (b"", b"")
I64_SLOT: Value = _I64, (b"", b"")


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; all but the last byte have their high bit set."""
    if number < 0x80:
        return _BYTES[number]
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    if number < 0x200000:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14 & 0x7F | 0x80)) + varint(
        number >> 21
    )


def i32(number: int) -> Value:
    return _I32, (varint(number << 1 ^ number >> 31),)


def i64(number: int) -> Value:
    return _I64, (varint(number << 1 ^ number >> 63),)


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
        parts += [(_BYTES[number - last << 4 | kind],), data]
        last = number
    return _STRUCT, _joined([*parts, (b"\0",)])


def _joined(parts: Sequence[tuple[bytes, ...]]) -> tuple[bytes, ...]:
    """One behind the other; pieces without a slot between them become one."""
    pieces: list[list[bytes]] = [[]]
    for part in parts:
        pieces[-1].append(part[0])
        pieces += [[piece] for piece in part[1:]]
    return tuple(b"".join(piece) for piece in pieces)


def fill(value: Value, *numbers: int) -> Value:
    """``value`` with a number in each of its slots."""
    kind, pieces = value
    out = [pieces[0]]
    for number, piece in zip(numbers, pieces[1:], strict=True):
        out += [varint(number << 1 ^ number >> 63), piece]
    return kind, (b"".join(out),)


def data_of(value: Value) -> bytes:
    """The bytes of a value without slots."""
    (data,) = value[1]
    return data
