"""A writer of Parquet files for what datasets hold: columns of 32 bits without nulls, and lists of such.

Its reason is in docs/adr/0008-a-parquet-writer-of-our-own.md. The format: https://parquet.apache.org/docs/file-format/.

Each column settles in its first row group on what pays, and keeps to it: a dictionary until a row group has too many
values, and compression if it saved a quarter there. So a file depends on its rows alone.
"""

from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from isal import isal_zlib
from numpy.typing import NDArray

from dlrm_app.preprocess import thrift
from dlrm_app.preprocess.pages import index_values, list_levels, pack_bits, split_bytes

_MAGIC = b"PAR1"
_CODECS = {"none": 0, "snappy": 1, "zstd": 6, "lz4": 7}
_INT32, _FLOAT = 1, 4
_REQUIRED, _REPEATED = 0, 2
_UINT_8, _LIST = 11, 3
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_PLAIN, _RLE, _RLE_DICTIONARY, _BYTE_STREAM_SPLIT = 0, 3, 8, 9

_OCCURRENCES = 4
_MAX_DICTIONARY = 1 << 16
"""A dictionary pays where a value occurs so many times on average, and has at most so many values."""
_WORTH = 0.75
"""Compression pays where it leaves at most this share of the bytes."""


class Sink(Protocol):
    def write(self, data: bytes, /) -> object: ...


class ParquetWriter:
    """Writes row groups of ``schema`` to ``file``."""

    def __init__(self, file: Sink, schema: pa.Schema, compression: str, level: int | None) -> None:
        """``compression``: zstd, lz4, snappy or none; ``level`` is zstd's."""
        self._file = file
        self._schema = schema
        self._columns = [_Column(field, compression, level) for field in schema]
        self._groups: list[thrift.Value] = []
        self._rows = 0
        self._at = 0
        self._write([_MAGIC])

    def write_group(self, table: pa.Table) -> None:
        """Writes the rows of ``table`` as one row group."""
        pieces, chunks, place = [], [], self._at
        for column, array in zip(self._columns, table.columns, strict=True):
            pages, chunk = column.encode(array.combine_chunks(), place)
            pieces += pages
            chunks.append(chunk)
            place += sum(map(len, pages))
        size = place - self._at
        self._groups.append(
            thrift.struct({1: thrift.items(chunks), 2: thrift.i64(size), 3: thrift.i64(len(table))})
        )
        self._rows += len(table)
        self._write(pieces)

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
    """A column, what its row groups have settled on, and room for their work."""

    def __init__(self, field: pa.Field, compression: str, level: int | None) -> None:
        self._is_list = pa.types.is_list(field.type)
        values = field.type.value_field if self._is_list else field
        self._kind = _FLOAT if values.type == pa.float32() else _INT32
        self._path = [field.name, "list", values.name] if self._is_list else [field.name]
        self.elements = _schema_elements(self._path, self._kind, values.type == pa.uint8())
        self._codec_number = _CODECS[compression]
        self._codec = _codec(compression, level)
        self._has_dictionary = True
        self._is_compressed: bool | None = None

    def encode(self, array: pa.Array, place: int) -> tuple[list[bytes], thrift.Value]:
        """(the pages of a chunk that begins at ``place`` of the file, its metadata)."""
        values, levels, count = self._flat(array)
        pages = _Pages(self._codec)
        indexed = self._indexed(values) if self._has_dictionary else None
        if indexed is not None:
            dictionary, body = indexed
            self._settle(body)
            pages.add_dictionary(dictionary.tobytes(), len(dictionary), self._is_compressed)
            encoding = _RLE_DICTIONARY
        else:
            apart = np.empty((4, len(values)), np.uint8)
            split_bytes(values, apart)
            body = apart.tobytes()
            self._settle(body)
            encoding = _BYTE_STREAM_SPLIT
            if not self._is_compressed:
                body, encoding = values.tobytes(), _PLAIN
        first = sum(map(len, pages.pieces))
        pages.add_data(levels + body, count, encoding, self._is_compressed)
        fields = {
            1: thrift.i32(self._kind),
            2: thrift.items([thrift.i32(number) for number in sorted({_PLAIN, _RLE, encoding})]),
            3: thrift.items([thrift.text(name) for name in self._path]),
            4: thrift.i32(self._codec_number if self._is_compressed else 0),
            5: thrift.i64(count),
            6: thrift.i64(pages.raw_size),
            7: thrift.i64(sum(map(len, pages.pieces))),
            9: thrift.i64(place + first),
        }
        if first:
            fields[11] = thrift.i64(place)
        return pages.pieces, thrift.struct({2: thrift.i64(place), 3: thrift.struct(fields)})

    def _flat(self, array: pa.Array) -> tuple[NDArray[np.uint32], bytes, int]:
        """(values, the levels of lists as a page wants them, how many values or levels there are)."""
        if not self._is_list:
            return _words(array), b"", len(array)
        ends = array.offsets.to_numpy()
        values = _words(array.flatten())
        room = len(values) + len(array)
        repetition, definition = np.empty(room, np.uint32), np.empty(room, np.uint32)
        count = list_levels(ends, repetition, definition)
        runs = [_packed(levels[:count], 1) for levels in (repetition, definition)]
        return values, b"".join(len(run).to_bytes(4, "little") + run for run in runs), count

    def _indexed(self, values: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], bytes] | None:
        """(the dictionary, the numbers of the values in it as a page wants them), or None for good if it does not pay."""
        limit = min(len(values) // _OCCURRENCES, _MAX_DICTIONARY)
        table_bits = max(_OCCURRENCES * limit - 1, 1).bit_length()
        table = np.empty(1 << table_bits, np.uint64)
        codes, dictionary = np.empty(len(values), np.uint32), np.empty(limit, np.uint32)
        distinct = index_values(values, limit, table, table_bits, codes, dictionary)
        if distinct < 1:
            self._has_dictionary, self._is_compressed = False, None
            return None
        width = max((distinct - 1).bit_length(), 1)
        return dictionary[:distinct], bytes([width]) + _packed(codes, width)

    def _settle(self, body: bytes) -> None:
        if self._is_compressed is None:
            self._is_compressed = self._codec is not None and (
                len(self._codec.compress(body)) <= _WORTH * len(body)
            )


class _Pages:
    """The pages of a chunk, headers included."""

    def __init__(self, codec: Any) -> None:
        self._codec = codec
        self.pieces: list[bytes] = []
        self.raw_size = 0

    def add_dictionary(self, body: bytes, count: int, is_compressed: bool | None) -> None:
        header = thrift.struct({1: thrift.i32(count), 2: thrift.i32(_PLAIN)})
        self._add(_DICTIONARY_PAGE, 7, header, body, is_compressed)

    def add_data(self, body: bytes, count: int, encoding: int, is_compressed: bool | None) -> None:
        levels = thrift.i32(_RLE)
        header = thrift.struct({1: thrift.i32(count), 2: thrift.i32(encoding), 3: levels, 4: levels})
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
        self.raw_size += len(head) + size


def _words(array: pa.Array) -> NDArray[np.uint32]:
    """Values without nulls, their bits as integers."""
    values = array.to_numpy()
    if values.itemsize != 4:
        return values.astype(np.uint32)
    words: NDArray[np.uint32] = values.view(np.uint32)
    return words


def _packed(codes: NDArray[np.uint32], width: int) -> bytes:
    """One run of packed bits, of whole groups of eight, with its header."""
    words = np.empty(len(codes) * width // 64 + 2, np.uint64)
    pack_bits(codes, width, words)
    groups = -(-len(codes) // 8)
    return thrift.varint(groups << 1 | 1) + words.view(np.uint8)[: groups * width].tobytes()


def _codec(compression: str, level: int | None) -> Any:
    if compression == "none":
        return None
    if compression == "zstd":
        return pa.Codec("zstd", compression_level=level)
    return pa.Codec("lz4_raw" if compression == "lz4" else compression)


def _schema_elements(path: list[str], kind: int, is_uint8: bool) -> list[dict[int, thrift.Value]]:
    """The schema's entries for a column: one, or those of a list and its element."""
    leaf = {1: thrift.i32(kind), 3: thrift.i32(_REQUIRED), 4: thrift.text(path[-1])}
    if is_uint8:
        leaf[6] = thrift.i32(_UINT_8)
    if len(path) == 1:
        return [leaf]
    one = thrift.i32(1)
    whole = {3: thrift.i32(_REQUIRED), 4: thrift.text(path[0]), 5: one, 6: thrift.i32(_LIST)}
    return [whole, {3: thrift.i32(_REPEATED), 4: thrift.text(path[1]), 5: one}, leaf]
