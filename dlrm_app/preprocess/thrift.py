"""Values in Thrift's compact protocol, as Parquet's headers and footer want them, each with the code of its type."""

from collections.abc import Mapping, Sequence

Value = tuple[int, bytes]
"""(type code, bytes)."""

_BYTES = [bytes([number]) for number in range(256)]
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; all but the last byte have their high bit set."""
    if number < 0x80:
        return _BYTES[number]
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80)) + varint(number >> 14)


def i32(number: int) -> Value:
    return _I32, varint(number << 1 ^ number >> 31)


def i64(number: int) -> Value:
    return _I64, varint(number << 1 ^ number >> 63)


def text(value: str) -> Value:
    data = value.encode()
    return _BINARY, varint(len(data)) + data


def items(values: Sequence[Value]) -> Value:
    """A list of values of one type; an empty one is of structs."""
    kind = values[0][0] if values else _STRUCT
    head = (
        bytes([len(values) << 4 | kind]) if len(values) < 15 else bytes([0xF0 | kind]) + varint(len(values))
    )
    return _LIST, head + b"".join(data for _, data in values)


def struct(fields: Mapping[int, Value]) -> Value:
    """``fields`` by their numbers, which must ascend by less than 16."""
    out, last = [], 0
    for number, (kind, data) in fields.items():
        out += [_BYTES[number - last << 4 | kind], data]
        last = number
    return _STRUCT, b"".join([*out, b"\0"])
