"""The structs of Parquet files: page headers, the schema, the metadata of chunks.

The format: https://parquet.apache.org/docs/file-format/; its structs and numbers: parquet.thrift there. They are
written in Thrift's compact protocol.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import pyarrow as pa

WRITER = "dlrm-app"
"""The writer's name in a file's footer."""
CODECS = {"none": 0, "zstd": 6, "lz4": 7}
PLAIN, _RLE, RLE_DICTIONARY, BYTE_STREAM_SPLIT = 0, 3, 8, 9
"""Parquet's numbers of encodings."""
_INT32, _FLOAT = 1, 4
_REQUIRED, _REPEATED = 0, 2
_UINT_8, _LIST_OF = 11, 3
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2

Value = tuple[int, bytes]
"""(Thrift's type code, the bytes)."""
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12
_BYTES = [bytes([byte]) for byte in range(256)]


def varint(number: int) -> bytes:
    """``number`` in seven bits a byte, the lowest first; all but the last byte have their high bit set."""
    data = b""
    while number >= 0x80:
        data += _BYTES[number & 0x7F | 0x80]
        number >>= 7
    return data + _BYTES[number]


@lru_cache(maxsize=1 << 10)  # most numbers of a row group have been written for another one
def _zigzag(number: int) -> bytes:
    """A signed number in zigzag form, so that small ones are short: 0, -1, 1, -2 become 0, 1, 2, 3."""
    return varint(number << 1 ^ number >> 63)


def _number(value: int, kind: int = _I32) -> Value:
    return kind, _zigzag(value)


def _long(value: int) -> Value:
    return _number(value, _I64)


def _text(value: str) -> Value:
    data = value.encode()
    return _BINARY, varint(len(data)) + data


def _items(values: Sequence[Value]) -> Value:
    """A list of values of one type; an empty list has the type struct."""
    kind, count = values[0][0] if values else _STRUCT, len(values)
    head = _BYTES[min(count, 15) << 4 | kind] + (varint(count) if count >= 15 else b"")
    return _LIST, head + b"".join(data for _, data in values)


def _struct(fields: Mapping[int, Value]) -> Value:
    """A struct of ``fields`` by number. Numbers must ascend by less than 16."""
    parts: list[bytes] = []
    last = 0
    for number, (kind, data) in fields.items():
        parts += (_BYTES[number - last << 4 | kind], data)
        last = number
    return _STRUCT, b"".join(parts) + b"\0"


_SLOT, _LONG_SLOT = (_I32, b"\xff<slot>\xff"), (_I64, b"\xff<slot>\xff")
"""A placeholder for a number that is filled in later; UTF-8 text cannot contain these bytes."""


class _Form:
    """A struct with slots. It is made once, since that takes longer than filling in the numbers of a row group."""

    def __init__(self, fields: Mapping[int, Value]) -> None:
        self._first, *self._behind = _struct(fields)[1].split(_SLOT[1])

    def fill(self, *numbers: int) -> bytes:
        """The struct with the signed ``numbers`` in its slots."""
        data = self._first
        for number, behind in zip(numbers, self._behind, strict=True):
            data += _zigzag(number) + behind
        return data


_ENCODINGS = {encoding: _number(encoding) for encoding in (PLAIN, _RLE, RLE_DICTIONARY, BYTE_STREAM_SPLIT)}
_LEVELS = {3: _ENCODINGS[_RLE], 4: _ENCODINGS[_RLE]}
_SIZES = {2: _SLOT, 3: _SLOT, 4: _SLOT}
_DICTIONARY_FORM = _Form(
    {1: _number(_DICTIONARY_PAGE), **_SIZES, 7: _struct({1: _SLOT, 2: _ENCODINGS[PLAIN]})}
)
_DATA_FORMS = {
    encoding: _Form({1: _number(_DATA_PAGE), **_SIZES, 5: _struct({1: _SLOT, 2: number, **_LEVELS})})
    for encoding, number in _ENCODINGS.items()
}


def page_header(encoding: int | None, raw_size: int, size: int, crc: int, count: int) -> bytes:
    """The header of a page of ``count`` values. ``encoding``: its data's encoding; None for a dictionary page."""
    form = _DICTIONARY_FORM if encoding is None else _DATA_FORMS[encoding]
    return form.fill(raw_size, size, crc - (crc >> 31 << 32), count)


@dataclass(frozen=True)
class ColumnFormat:
    """A column's entries in files: in the schema, and for its chunks by encoding."""

    elements: list[Value]
    chunks: dict[int, _Form]

    @classmethod
    @cache  # each shard has the same columns
    def of(cls, field: pa.Field) -> "ColumnFormat":
        """The format of a column of 32-bit or uint8 values, or of lists of them."""
        kind, path = field.type, [field.name]
        outer = []
        if pa.types.is_list(kind):
            path += ["list", kind.value_field.name]
            kind = kind.value_type
            one = _number(1)
            whole = {3: _number(_REQUIRED), 4: _text(path[0]), 5: one, 6: _number(_LIST_OF)}
            outer = [_struct(whole), _struct({3: _number(_REPEATED), 4: _text(path[1]), 5: one})]
        stored = _number(_FLOAT if kind == pa.float32() else _INT32)
        leaf = {1: stored, 3: _number(_REQUIRED), 4: _text(path[-1])}
        if kind == pa.uint8():
            leaf[6] = _number(_UINT_8)
        names = _items([_text(name) for name in path])
        return cls(
            [*outer, _struct(leaf)],
            {encoding: _chunk_form(stored, names, encoding) for encoding in _ENCODINGS},
        )

    def chunk(
        self, encoding: int, codec: int, count: int, raw_size: int, size: int, offsets: Sequence[int]
    ) -> Value:
        """The footer's entry for a chunk of ``count`` values.

        ``offsets``: where its pages start, the data page last.
        """
        dictionary = offsets[:1] if encoding == RLE_DICTIONARY else []
        numbers = (offsets[0], codec, count, raw_size, size, offsets[-1], *dictionary)
        return _STRUCT, self.chunks[encoding].fill(*numbers)


def _chunk_form(stored: Value, path: Value, encoding: int) -> _Form:
    used = [_ENCODINGS[number] for number in sorted({PLAIN, _RLE, encoding})]
    fields = {1: stored, 2: _items(used), 3: path, 4: _SLOT}
    fields |= dict.fromkeys((5, 6, 7, 9), _LONG_SLOT)
    if encoding == RLE_DICTIONARY:
        fields[11] = _LONG_SLOT
    return _Form({2: _LONG_SLOT, 3: _struct(fields)})


def row_group(chunks: Sequence[Value], size: int, num_rows: int) -> Value:
    """The footer's entry for a row group."""
    return _struct({1: _items(chunks), 2: _long(size), 3: _long(num_rows)})


def footer(columns: Sequence[ColumnFormat], row_groups: Sequence[Value], num_rows: int) -> bytes:
    """The footer of a file, without its own length."""
    elements = [_struct({4: _text("schema"), 5: _number(len(columns))})]
    elements += [element for column in columns for element in column.elements]
    fields = {1: _number(2), 2: _items(elements), 3: _long(num_rows), 4: _items(row_groups), 6: _text(WRITER)}
    return _struct(fields)[1]
