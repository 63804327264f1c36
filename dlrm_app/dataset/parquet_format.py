"""The structs of Parquet files: headers of pages, the schema, the metadata of chunks.

The format: https://parquet.apache.org/docs/file-format/, its structs and numbers: parquet.thrift there. They are written
in Thrift's compact protocol. A value may have slots, left open for numbers: what headers say is mostly the same, so
they are made once and filled for each page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

WRITER = "dlrm-app"
"""Who made a file, as its footer says."""
CODECS = {"none": 0, "zstd": 6, "lz4": 7}
PLAIN, _RLE, RLE_DICTIONARY, BYTE_STREAM_SPLIT = 0, 3, 8, 9
"""Encodings."""
_INT32, _FLOAT = 1, 4
_REQUIRED, _REPEATED = 0, 2
_UINT_8, _LIST_OF = 11, 3
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2

Value = tuple[int, tuple[bytes, ...]]
"""(Thrift's type code, the bytes between the slots: one piece more than there are slots)."""
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12
_SLOT: Value = _I32, (b"", b"")
_LONG_SLOT: Value = _I64, (b"", b"")
_BYTES = [bytes([byte]) for byte in range(256)]


def varint(number: int) -> bytes:
    """``number`` in seven bits a byte, the lowest first; all but the last byte have their high bit set."""
    out = b""
    while number >= 0x80:
        out += _BYTES[number & 0x7F | 0x80]
        number >>= 7
    return out + _BYTES[number]


def _folded(number: int) -> bytes:
    """The varint of a signed number, folded so that small ones are short: 0, -1, 1, -2 become 0, 1, 2, 3."""
    return varint(number << 1 ^ number >> 63)


def _number(value: int, kind: int = _I32) -> Value:
    return kind, (_folded(value),)


def _text(value: str) -> Value:
    data = value.encode()
    return _BINARY, (varint(len(data)) + data,)


def _items(values: Sequence[Value]) -> Value:
    """A list of values of one type; an empty one is of structs."""
    kind = values[0][0] if values else _STRUCT
    head = bytes([min(len(values), 15) << 4 | kind]) + (varint(len(values)) if len(values) >= 15 else b"")
    return _LIST, _joined([(head,), *(data for _, data in values)])


def _struct(fields: Mapping[int, Value]) -> Value:
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


def filled(form: Value, numbers: Sequence[int]) -> bytes:
    """The bytes of ``form`` with ``numbers`` in its slots."""
    first, *rest = form[1]
    pieces = [first]
    for number, piece in zip(numbers, rest, strict=True):
        pieces += (_folded(number), piece)
    return b"".join(pieces)


def _page_header(kind: int, field: int, encoding: int, more: Mapping[int, Value]) -> Value:
    """To be filled with the page's size, its size in the file, its checksum and its number of values."""
    page = _struct({1: _SLOT, 2: _number(encoding), **more})
    return _struct({1: _number(kind), 2: _SLOT, 3: _SLOT, 4: _SLOT, field: page})


_LEVELS = {3: _number(_RLE), 4: _number(_RLE)}
HEADERS = {
    encoding: _page_header(_DATA_PAGE, 5, encoding, _LEVELS)
    for encoding in (PLAIN, RLE_DICTIONARY, BYTE_STREAM_SPLIT)
}
"""Of pages with data, by their encoding."""
DICTIONARY_HEADER = _page_header(_DICTIONARY_PAGE, 7, PLAIN, {})


@dataclass(frozen=True)
class FileFormat:
    """The parts that are the same in all files of a schema.

    ``metadata``: of each column, by its encoding; to be filled with the chunk's offset, codec, number of values, sizes
    without and with compression, and its pages' offsets, the one of the data first.
    """

    elements: list[Value]
    metadata: list[dict[int, Value]]


@lru_cache(maxsize=64)
def file_format(schema: pa.Schema) -> FileFormat:
    """The format of files of ``schema``."""
    elements = [_struct({4: _text("schema"), 5: _number(len(schema))})]
    metadata = []
    for field in schema:
        kind, path = field.type, [field.name]
        if pa.types.is_list(kind):
            path += ["list", kind.value_field.name]
            kind = kind.value_type
        stored = _number(_FLOAT if kind == pa.float32() else _INT32)
        elements += _schema_elements(path, stored, kind == pa.uint8())
        metadata.append({encoding: _metadata(stored, path, encoding) for encoding in HEADERS})
    return FileFormat(elements, metadata)


def _metadata(kind: Value, path: Sequence[str], encoding: int) -> Value:
    chunk = {
        1: kind,
        2: _items([_number(number) for number in sorted({PLAIN, _RLE, encoding})]),
        3: _items([_text(name) for name in path]),
        4: _SLOT,
        **dict.fromkeys((5, 6, 7, 9), _LONG_SLOT),
        **({11: _LONG_SLOT} if encoding == RLE_DICTIONARY else {}),
    }
    return _struct({2: _LONG_SLOT, 3: _struct(chunk)})


def _schema_elements(path: list[str], kind: Value, is_uint8: bool) -> list[Value]:
    """The schema's entries for a column: one, or those of a list and its element."""
    leaf = {1: kind, 3: _number(_REQUIRED), 4: _text(path[-1])}
    if is_uint8:
        leaf[6] = _number(_UINT_8)
    if len(path) == 1:
        return [_struct(leaf)]
    one = _number(1)
    whole = {3: _number(_REQUIRED), 4: _text(path[0]), 5: one, 6: _number(_LIST_OF)}
    middle = {3: _number(_REPEATED), 4: _text(path[1]), 5: one}
    return [_struct(element) for element in (whole, middle, leaf)]


def row_group(chunks: Sequence[bytes], size: int, num_rows: int) -> Value:
    """A row group of the footer; ``chunks``: the filled metadata of its columns."""
    return _struct(
        {
            1: _items([(_STRUCT, (chunk,)) for chunk in chunks]),
            2: _number(size, _I64),
            3: _number(num_rows, _I64),
        }
    )


def footer(schema: FileFormat, row_groups: Sequence[Value], num_rows: int) -> bytes:
    """The end of a file, before the footer's own length."""
    fields = {1: _number(2), 2: _items(schema.elements), 3: _number(num_rows, _I64), 4: _items(row_groups)}
    return filled(_struct({**fields, 6: _text(WRITER)}), [])
