"""A writer of Parquet files for what datasets hold: columns of 32 bits without nulls, and lists of such.

Its reason is in docs/adr/0008-a-parquet-writer-of-our-own.md. The format: https://parquet.apache.org/docs/file-format/.

Each column settles in its first row group on what pays, and keeps to it: a dictionary until a row group has too many
values, and compression if it saved enough there. So a file depends on its rows alone.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from isal import isal_zlib
from numpy.typing import NDArray

from dlrm_app.preprocess import thrift
from dlrm_app.preprocess.indexing import Index, Indexer, index_values
from dlrm_app.preprocess.pages import list_levels, pack_bits, split_bytes

_MAGIC = b"PAR1"
_CODECS = {"none": 0, "snappy": 1, "zstd": 6, "lz4": 7}
_INT32, _FLOAT = 1, 4
_REQUIRED, _REPEATED = 0, 2
_UINT_8, _LIST = 11, 3
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_PLAIN, _RLE, _RLE_DICTIONARY, _BYTE_STREAM_SPLIT = 0, 3, 8, 9
_ENCODINGS = {
    encoding: thrift.items([thrift.i32(number) for number in sorted({_PLAIN, _RLE, encoding})])
    for encoding in (_PLAIN, _RLE_DICTIONARY, _BYTE_STREAM_SPLIT)
}
"""All encodings of a chunk whose values have the given one."""
_LEVELS = thrift.i32(_RLE)

_WORTH = {_RLE_DICTIONARY: 0.5, _BYTE_STREAM_SPLIT: 0.9}
"""Compression pays where it leaves at most this share of a page's bytes: numbers in a dictionary are packed already."""
_ITSELF = np.arange(2, dtype=np.uint16)


class Sink(Protocol):
    def write(self, data: bytes, /) -> object: ...


class ParquetWriter:
    """Writes row groups of ``schema`` to ``file``."""

    def __init__(self, file: Sink, schema: pa.Schema, compression: str, level: int | None) -> None:
        """``compression``: zstd, lz4, snappy or none; ``level`` is zstd's."""
        self._file = file
        self._columns = [_Column(field, compression, level) for field in schema]
        self._groups: list[thrift.Value] = []
        self._rows = 0
        self._at = 0
        self._write([_MAGIC])

    def write_group(self, columns: Sequence[pa.Array | Index], num_rows: int) -> None:
        """Writes ``columns``, each plain or indexed by its 32-bit values, as one row group."""
        chunks, start = [], self._at
        for column, values in zip(self._columns, columns, strict=True):
            pages, chunk = column.encode(values, self._at)
            self._write(pages)  # at once, while they are in the core's own cache
            chunks.append(chunk)
        size = thrift.i64(self._at - start)
        self._groups.append(thrift.struct({1: thrift.items(chunks), 2: size, 3: thrift.i64(num_rows)}))
        self._rows += num_rows

    def close(self) -> None:
        """Writes the footer; ``file`` stays open."""
        elements = [{4: thrift.text("schema"), 5: thrift.i32(len(self._columns))}]
        for column in self._columns:
            elements += column.elements
        fields = {
            1: thrift.i32(2),
            2: thrift.items([thrift.struct(element) for element in elements]),
            3: thrift.i64(self._rows),
            4: thrift.items(self._groups),
            6: thrift.text("dlrm-app"),
        }
        footer = thrift.struct(fields)[1]
        self._write([footer, len(footer).to_bytes(4, "little"), _MAGIC])

    def _write(self, pieces: list[bytes]) -> None:
        data = b"".join(pieces)
        self._file.write(data)
        self._at += len(data)


class _Column:
    """A column, and what its row groups have settled on."""

    def __init__(self, field: pa.Field, compression: str, level: int | None) -> None:
        kind, path = field.type, [field.name]
        self._is_list = pa.types.is_list(kind)
        if self._is_list:
            path += ["list", kind.value_field.name]
            kind = kind.value_type
        self._path = thrift.items([thrift.text(name) for name in path])
        self._kind = thrift.i32(_FLOAT if kind == pa.float32() else _INT32)
        self.elements = _schema_elements(path, self._kind, kind == pa.uint8())
        self._codec_number = _CODECS[compression]
        self._codec = _codec(compression, level)
        self._indexer = Indexer()
        self._encoding = _RLE_DICTIONARY
        self._is_compressed: bool | None = None

    def encode(self, column: pa.Array | Index, place: int) -> tuple[list[bytes], thrift.Value]:
        """(the pages of a chunk that begins at ``place`` of the file, its metadata)."""
        pages = _Pages(self._codec)
        levels = b""
        index: Index | None
        if isinstance(column, Index):
            count, index = len(column.codes), column._replace(distinct=column.distinct.view(np.uint32))
        else:
            count = len(column)
            if self._is_list:
                count, levels = _levels(column)
                column = column.flatten()
            words = _words(column)
            index = self._indexer.index(words)
        if index is not None:
            body = self._add_dictionary(index, pages)
            encoding = _RLE_DICTIONARY
        else:
            body, encoding = self._apart(words)
        first = pages.size
        pages.add_data(levels + body, count, encoding, self._is_compressed)
        fields = {
            1: self._kind,
            2: _ENCODINGS[encoding],
            3: self._path,
            4: thrift.i32(self._codec_number if self._is_compressed else 0),
            5: thrift.i64(count),
            6: thrift.i64(pages.raw_size),
            7: thrift.i64(pages.size),
            9: thrift.i64(place + first),
            **({11: thrift.i64(place)} if first else {}),
        }
        return pages.pieces, thrift.struct({2: thrift.i64(place), 3: thrift.struct(fields)})

    def _add_dictionary(self, index: Index, pages: "_Pages") -> bytes:
        """Adds the dictionary's page; gives what stands in the other one. Distinct keys may have become equal values."""
        numbers, dictionary = index_values(index.distinct, len(index.distinct)) or index
        width = max((len(dictionary) - 1).bit_length(), 1)
        body = bytes([width]) + _packed(index.codes, numbers, width)
        self._settle(_RLE_DICTIONARY, body)
        pages.add_dictionary(dictionary.tobytes(), len(dictionary), self._is_compressed)
        return body

    def _apart(self, values: NDArray[np.uint32]) -> tuple[bytes, int]:
        """(what stands in a page without dictionary, its encoding)."""
        apart = np.empty((4, len(values)), np.uint8)
        split_bytes(values, apart)
        body = apart.tobytes()
        self._settle(_BYTE_STREAM_SPLIT, body)
        return (body, _BYTE_STREAM_SPLIT) if self._is_compressed else (values.tobytes(), _PLAIN)

    def _settle(self, encoding: int, body: bytes) -> None:
        """Decides on compression, by the first page of its encoding that is not empty."""
        if body and (self._is_compressed is None or encoding != self._encoding):
            self._encoding = encoding
            self._is_compressed = self._codec is not None and (
                len(self._codec.compress(body)) <= _WORTH[encoding] * len(body)
            )


class _Pages:
    """The pages of a chunk, headers included."""

    def __init__(self, codec: Any) -> None:
        self._codec = codec
        self.pieces: list[bytes] = []
        self.size = self.raw_size = 0

    def add_dictionary(self, body: bytes, count: int, is_compressed: bool | None) -> None:
        header = thrift.struct({1: thrift.i32(count), 2: thrift.i32(_PLAIN)})
        self._add(_DICTIONARY_PAGE, 7, header, body, is_compressed)

    def add_data(self, body: bytes, count: int, encoding: int, is_compressed: bool | None) -> None:
        header = thrift.struct({1: thrift.i32(count), 2: thrift.i32(encoding), 3: _LEVELS, 4: _LEVELS})
        self._add(_DATA_PAGE, 5, header, body, is_compressed)

    def _add(
        self, kind: int, field: int, header: thrift.Value, body: bytes, is_compressed: bool | None
    ) -> None:
        size = len(body)
        if is_compressed:
            body = self._codec.compress(body, asbytes=True)
        crc = isal_zlib.crc32(body)
        start = {
            1: thrift.i32(kind),
            2: thrift.i32(size),
            3: thrift.i32(len(body)),
            4: thrift.i32(crc - (crc >> 31 << 32)),
        }
        head = thrift.struct({**start, field: header})[1]
        self.pieces += [head, body]
        self.size += len(head) + len(body)
        self.raw_size += len(head) + size


def _words(array: pa.Array) -> NDArray[np.uint32]:
    """Values without nulls, their bits as integers."""
    values = array.to_numpy()
    if values.itemsize != 4:
        return values.astype(np.uint32)
    words: NDArray[np.uint32] = values.view(np.uint32)
    return words


def _packed(codes: NDArray[np.uint16], numbers: NDArray[np.uint16], width: int) -> bytes:
    """``numbers[codes]`` as one run of packed bits, of whole groups of eight, with its header."""
    groups = -(-len(codes) // 8)
    words = np.empty(groups * width // 8 + 1, np.uint64)
    pack_bits(codes, numbers, width, words)
    return thrift.varint(groups << 1 | 1) + words.view(np.uint8)[: groups * width].tobytes()


def _levels(array: pa.Array) -> tuple[int, bytes]:
    """How many levels lists have, and the levels as a page wants them."""
    room = len(array.flatten()) + len(array)
    repetition, definition = np.empty(room, np.uint16), np.empty(room, np.uint16)
    count = list_levels(array.offsets.to_numpy(), repetition, definition)
    runs = [_packed(levels[:count], _ITSELF, 1) for levels in (repetition, definition)]
    return count, b"".join(len(run).to_bytes(4, "little") + run for run in runs)


def _codec(compression: str, level: int | None) -> Any:
    if compression == "none":
        return None
    if compression == "zstd":
        return pa.Codec("zstd", compression_level=level)
    return pa.Codec("lz4_raw" if compression == "lz4" else compression)


def _schema_elements(path: list[str], kind: thrift.Value, is_uint8: bool) -> list[dict[int, thrift.Value]]:
    """The schema's entries for a column: one, or those of a list and its element."""
    leaf = {1: kind, 3: thrift.i32(_REQUIRED), 4: thrift.text(path[-1])}
    if is_uint8:
        leaf[6] = thrift.i32(_UINT_8)
    if len(path) == 1:
        return [leaf]
    one = thrift.i32(1)
    whole = {3: thrift.i32(_REQUIRED), 4: thrift.text(path[0]), 5: one, 6: thrift.i32(_LIST)}
    return [whole, {3: thrift.i32(_REPEATED), 4: thrift.text(path[1]), 5: one}, leaf]
