"""What Parquet files say of themselves: headers of pages, the schema, the metadata of chunks.

The format: https://parquet.apache.org/docs/file-format/, its structs and numbers: parquet.thrift there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from dlrm_app.dataset.parquet import thrift

CODECS = {"none": 0, "snappy": 1, "zstd": 6, "lz4": 7}
_INT32, _FLOAT = 1, 4
_REQUIRED, _REPEATED = 0, 2
_UINT_8, _LIST = 11, 3
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
PLAIN, _RLE, RLE_DICTIONARY, BYTE_STREAM_SPLIT = 0, 3, 8, 9
DATA_ENCODINGS = (PLAIN, RLE_DICTIONARY, BYTE_STREAM_SPLIT)
"""Of pages with data; their headers stand in this order among HEADERS, and then the one of a dictionary."""
_OPEN = thrift.SLOT
_LEVELS = {3: thrift.i32(_RLE), 4: thrift.i32(_RLE)}


def _page_header(kind: int, field: int, encoding: int, more: dict[int, thrift.Value]) -> thrift.Value:
    """To be filled with the page's size, its size in the file, its checksum and its number of values."""
    page = thrift.struct({1: _OPEN, 2: thrift.i32(encoding), **more})
    return thrift.struct({1: thrift.i32(kind), 2: _OPEN, 3: _OPEN, 4: _OPEN, field: page})


HEADERS = thrift.Forms(
    [
        *(_page_header(_DATA_PAGE, 5, encoding, _LEVELS) for encoding in DATA_ENCODINGS),
        _page_header(_DICTIONARY_PAGE, 7, PLAIN, {}),
    ]
)
DICTIONARY_HEADER = len(DATA_ENCODINGS)


@dataclass(frozen=True)
class Schema:
    """What is the same in all files of a schema.

    ``metadata`` of a chunk is to be filled with its offset, codec, number of values, sizes, and its pages' offsets.
    """

    elements: list[thrift.Value]
    metadata: thrift.Forms

    def form(self, column: int, encoding: int) -> int:
        """Which of ``metadata`` a chunk has."""
        return len(DATA_ENCODINGS) * column + DATA_ENCODINGS.index(encoding)


@lru_cache(maxsize=64)
def describe(schema: pa.Schema) -> Schema:
    """What files of ``schema`` say of it."""
    elements = [thrift.struct({4: thrift.text("schema"), 5: thrift.i32(len(schema))})]
    metadata = []
    for field in schema:
        kind, path = field.type, [field.name]
        if pa.types.is_list(kind):
            path += ["list", kind.value_field.name]
            kind = kind.value_type
        stored = thrift.i32(_FLOAT if kind == pa.float32() else _INT32)
        elements += _schema_elements(path, stored, kind == pa.uint8())
        metadata += [_metadata(stored, path, encoding) for encoding in DATA_ENCODINGS]
    return Schema(elements, thrift.Forms(metadata))


def _metadata(kind: thrift.Value, path: Sequence[str], encoding: int) -> thrift.Value:
    chunk = {
        1: kind,
        2: thrift.items([thrift.i32(number) for number in sorted({PLAIN, _RLE, encoding})]),
        3: thrift.items([thrift.text(name) for name in path]),
        4: _OPEN,
        **dict.fromkeys((5, 6, 7, 9), thrift.LONG_SLOT),
        **({11: thrift.LONG_SLOT} if encoding == RLE_DICTIONARY else {}),
    }
    return thrift.struct({2: thrift.LONG_SLOT, 3: thrift.struct(chunk)})


def _schema_elements(path: list[str], kind: thrift.Value, is_uint8: bool) -> list[thrift.Value]:
    """The schema's entries for a column: one, or those of a list and its element."""
    leaf = {1: kind, 3: thrift.i32(_REQUIRED), 4: thrift.text(path[-1])}
    if is_uint8:
        leaf[6] = thrift.i32(_UINT_8)
    if len(path) == 1:
        return [thrift.struct(leaf)]
    one = thrift.i32(1)
    whole = {3: thrift.i32(_REQUIRED), 4: thrift.text(path[0]), 5: one, 6: thrift.i32(_LIST)}
    middle = {3: thrift.i32(_REPEATED), 4: thrift.text(path[1]), 5: one}
    return [thrift.struct(element) for element in (whole, middle, leaf)]
