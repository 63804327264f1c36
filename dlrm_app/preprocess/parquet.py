"""A writer of Parquet files for what datasets hold: columns of 32 bits without nulls, and lists of such.

Its reason is in docs/adr/0008-a-parquet-writer-of-our-own.md. The format: https://parquet.apache.org/docs/file-format/.

Each column settles in its first row group on what pays, and keeps to it: a dictionary until a row group has too many
values; without one, differences packed (integers) or bytes apart and compressed (floats), if they save enough. So a file
depends on its rows alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from isal import isal_zlib
from numpy.typing import NDArray

from dlrm_app.preprocess import thrift
from dlrm_app.preprocess.indexing import Columns, Indexed, Indexer, index_columns
from dlrm_app.preprocess.pages import deltas_room, list_levels, pack_columns, pack_deltas, split_bytes

_MAGIC = b"PAR1"
_CODECS = {"none": 0, "snappy": 1, "zstd": 6, "lz4": 7}
_INT32, _FLOAT = 1, 4
_REQUIRED, _REPEATED = 0, 2
_UINT_8, _LIST = 11, 3
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_PLAIN, _RLE, _DELTA_BINARY_PACKED, _RLE_DICTIONARY, _BYTE_STREAM_SPLIT = 0, 3, 5, 8, 9
_OPEN = thrift.I32_SLOT


def _page_header(kind: int, field: int, more: dict[int, thrift.Value]) -> thrift.Value:
    """To be filled with the page's size, its size in the file, its checksum and its number of values."""
    own = thrift.struct({1: _OPEN, **more})
    return thrift.struct({1: thrift.i32(kind), 2: _OPEN, 3: _OPEN, 4: _OPEN, field: own})


_DICTIONARY_HEADER = _page_header(_DICTIONARY_PAGE, 7, {2: thrift.i32(_PLAIN)})
_DATA_HEADERS = {
    encoding: _page_header(_DATA_PAGE, 5, {2: thrift.i32(encoding), 3: thrift.i32(_RLE), 4: thrift.i32(_RLE)})
    for encoding in (_PLAIN, _DELTA_BINARY_PACKED, _RLE_DICTIONARY, _BYTE_STREAM_SPLIT)
}

_WORTH = {_RLE_DICTIONARY: 0.4, _DELTA_BINARY_PACKED: 0.9, _BYTE_STREAM_SPLIT: 0.7}
"""What makes a page smaller pays if it leaves at most this share: compression takes far more time than packing."""
_SAMPLE = 1 << 11
"""Bytes of a page that are compressed to find that out."""
_NO_WORDS = np.empty(0, np.uint32)
_THEMSELVES = np.arange(1 << 16, dtype=np.uint16)

Piece = bytes | memoryview
"""A part of a page."""


class Sink(Protocol):
    def write(self, data: bytes, /) -> object: ...


class ParquetWriter:
    """Writes row groups of ``schema`` to ``file``."""

    def __init__(self, file: Sink, schema: pa.Schema, compression: str, level: int | None) -> None:
        """``compression``: zstd, lz4, snappy or none; ``level`` is zstd's."""
        self._file = file
        codec = _codec(compression, level)
        self._columns = [_Column(field, compression, codec) for field in schema]
        self._indexer = Indexer(np.zeros(len(schema), np.uint32))
        self._groups: list[thrift.Value] = []
        self._rows = 0
        self._at = 0
        self._write([_MAGIC])

    def write_group(
        self, columns: Sequence[pa.Array | int], num_rows: int, indexed: Indexed | None = None
    ) -> None:
        """Writes ``columns`` as one row group: each plain, or the number of a column of ``indexed``.

        Distinct values of ``indexed`` are 32 bits each, and need not be distinct.
        """
        values = [
            _Values(num_rows, b"", _NO_WORDS) if isinstance(column, int) else _values(column)
            for column in columns
        ]
        own = self._indexer.index(Columns.joined([value.words for value in values]))
        own_pages = _dictionary_pages(own.codes, own.distinct, None)
        given_pages = [] if indexed is None else _joined_pages(indexed)
        pieces: list[Piece] = []
        chunks = []
        at = self._at
        for place, (column, value) in enumerate(zip(columns, values, strict=True)):
            pages = given_pages[column] if isinstance(column, int) else own_pages[place]
            chunk = self._columns[place].encode(value, pages, at)
            pieces += chunk.pieces
            at += chunk.size
            chunks.append(chunk.metadata)
        size = thrift.i64(at - self._at)
        self._write(pieces)
        self._groups.append(thrift.struct({1: thrift.items(chunks), 2: size, 3: thrift.i64(num_rows)}))
        self._rows += num_rows

    def close(self) -> None:
        """Writes the footer; ``file`` stays open."""
        elements = [thrift.struct({4: thrift.text("schema"), 5: thrift.i32(len(self._columns))})]
        for column in self._columns:
            elements += column.elements
        fields = {
            1: thrift.i32(2),
            2: thrift.items(elements),
            3: thrift.i64(self._rows),
            4: thrift.items(self._groups),
            6: thrift.text("dlrm-app"),
        }
        footer = thrift.data_of(thrift.struct(fields))
        self._write([footer, len(footer).to_bytes(4, "little"), _MAGIC])

    def _write(self, pieces: Sequence[Piece]) -> None:
        data = b"".join(pieces)
        self._file.write(data)
        self._at += len(data)


@dataclass(frozen=True, slots=True)
class _Values:
    """A column of a row group: ``count`` values or levels, the levels of its lists, the bits of plain values."""

    count: int
    levels: bytes
    words: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class _DictionaryPages:
    """Distinct values, and the numbers of all values as a page wants them."""

    dictionary: NDArray[np.uint32]
    body: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class _Chunk:
    pieces: list[Piece]
    size: int
    metadata: thrift.Value


@dataclass(frozen=True)
class _Format:
    """What is the same in all files about a column: its entries of the schema, and its chunks' metadata.

    ``metadata`` by encoding and by compression is to be filled with a chunk's place, its values, its sizes, and the
    places of its pages.
    """

    is_float: bool
    elements: list[thrift.Value]
    metadata: dict[tuple[int, bool], thrift.Value]


@lru_cache(maxsize=4096)
def _format(field: pa.Field, codec: int) -> _Format:
    kind, path = field.type, [field.name]
    if pa.types.is_list(kind):
        path += ["list", kind.value_field.name]
        kind = kind.value_type
    stored = thrift.i32(_FLOAT if kind == pa.float32() else _INT32)
    names = thrift.items([thrift.text(name) for name in path])
    metadata = {}
    for encoding, is_compressed in product(_DATA_HEADERS, (False, True)):
        encodings = [thrift.i32(number) for number in sorted({_PLAIN, _RLE, encoding})]
        fields = {
            1: stored,
            2: thrift.items(encodings),
            3: names,
            4: thrift.i32(codec if is_compressed else 0),
            **dict.fromkeys((5, 6, 7, 9), thrift.I64_SLOT),
            **({11: thrift.I64_SLOT} if encoding == _RLE_DICTIONARY else {}),
        }
        metadata[encoding, is_compressed] = thrift.struct({2: thrift.I64_SLOT, 3: thrift.struct(fields)})
    return _Format(kind == pa.float32(), _schema_elements(path, stored, kind == pa.uint8()), metadata)


class _Column:
    """A column, and what its row groups have settled on."""

    def __init__(self, field: pa.Field, compression: str, codec: Any) -> None:
        self._format = _format(field, _CODECS[compression])
        self.elements = self._format.elements
        self._codec = codec
        self._pays: dict[int, bool] = {}

    def encode(self, values: _Values, coded: _DictionaryPages | None, place: int) -> _Chunk:
        """The chunk that begins at ``place`` of the file."""
        pages = _Pages(self._codec)
        if coded is not None:
            body, encoding = coded.body, _RLE_DICTIONARY
            is_compressed = self._codec is not None and self._does_pay(encoding, self._shrinks, body)
            pages.add_dictionary(coded.dictionary, is_compressed)
        else:
            body, encoding, is_compressed = self._without_dictionary(values.words)
        first = pages.size
        if values.levels:
            body = (values.levels, *body)
        pages.add_data(body, values.count, encoding, is_compressed)
        form = self._format.metadata[encoding, is_compressed]
        numbers = [place, values.count, pages.raw_size, pages.size, place + first]
        metadata = thrift.fill(form, *numbers, *([place] if first else []))
        return _Chunk(pages.pieces, pages.size, metadata)

    def _without_dictionary(self, words: NDArray[np.uint32]) -> tuple[tuple[Piece, ...], int, bool]:
        """(what stands in a page, its encoding, whether to compress it)."""
        plain = words.view(np.uint8).data
        if self._format.is_float and self._codec is not None and self._pays.get(_BYTE_STREAM_SPLIT, True):
            apart = np.empty((4, len(words)), np.uint8)
            split_bytes(words, apart)
            body = tuple(plane.data for plane in apart)
            if self._does_pay(_BYTE_STREAM_SPLIT, self._shrinks, body):
                return body, _BYTE_STREAM_SPLIT, True
        elif not self._format.is_float and self._pays.get(_DELTA_BINARY_PACKED, True):
            packed = _deltas(words)
            if self._does_pay(_DELTA_BINARY_PACKED, lambda _: len(packed) / len(plain), (plain,)):
                return (packed,), _DELTA_BINARY_PACKED, False
        return (plain,), _PLAIN, False

    def _does_pay(
        self, encoding: int, share: Callable[[tuple[Piece, ...]], float], body: tuple[Piece, ...]
    ) -> bool:
        """Whether what ``share`` leaves of the first page of the encoding that is not empty was little enough."""
        if encoding not in self._pays and any(len(piece) for piece in body):
            self._pays[encoding] = share(body) <= _WORTH[encoding]
        return self._pays.get(encoding, False)

    def _shrinks(self, body: tuple[Piece, ...]) -> float:
        """What compression leaves of a sample of a page."""
        sample = b"".join(bytes(piece[: _SAMPLE // len(body)]) for piece in body)
        return len(self._codec.compress(sample)) / len(sample)


class _Pages:
    """The pages of a chunk, headers included."""

    def __init__(self, codec: Any) -> None:
        self._codec = codec
        self.pieces: list[Piece] = []
        self.size = self.raw_size = 0

    def add_dictionary(self, values: NDArray[np.uint32], is_compressed: bool) -> None:
        self._add(_DICTIONARY_HEADER, (values.view(np.uint8).data,), len(values), is_compressed)

    def add_data(self, body: tuple[Piece, ...], count: int, encoding: int, is_compressed: bool) -> None:
        self._add(_DATA_HEADERS[encoding], body, count, is_compressed)

    def _add(self, header: thrift.Value, body: tuple[Piece, ...], count: int, is_compressed: bool) -> None:
        size = stored = sum(map(len, body))
        if is_compressed:
            body = (self._codec.compress(b"".join(body), asbytes=True),)
            stored = len(body[0])
        crc = 0
        for piece in body:
            crc = isal_zlib.crc32(piece, crc)
        head = thrift.data_of(thrift.fill(header, size, stored, crc - (crc >> 31 << 32), count))
        self.pieces += [head, *body]
        self.size += len(head) + stored
        self.raw_size += len(head) + size


def _values(array: pa.Array) -> _Values:
    """A column that is plain, without nulls."""
    if pa.types.is_list(array.type):
        count, levels = _levels(array)
        return _Values(count, levels, _words(array.flatten()))
    return _Values(len(array), b"", _words(array))


def _words(array: pa.Array) -> NDArray[np.uint32]:
    """The bits of values."""
    values = array.to_numpy()
    if values.itemsize != 4:
        return values.astype(np.uint32)
    words: NDArray[np.uint32] = values.view(np.uint32)
    return words


def _joined_pages(indexed: Indexed) -> list[_DictionaryPages | None]:
    """The pages of ``indexed``, whose values are numbered anew: distinct keys may have become equal ones."""
    lengths = indexed.distinct.ends - indexed.distinct.begins
    joined = index_columns(indexed.distinct, lengths, np.zeros(len(lengths), np.uint32))
    return _dictionary_pages(indexed.codes, joined.distinct, joined.codes)


def _dictionary_pages(
    codes: Columns, distinct: Columns, numbers: Columns | None
) -> list[_DictionaryPages | None]:
    """The pages of columns whose codes stand for ``numbers``, or themselves, of distinct values; None if there are none."""
    sizes = distinct.ends - distinct.begins
    widths = [int(size - 1).bit_length() or 1 if size else 0 for size in sizes.tolist()]
    bodies = _packed(codes, numbers, widths)
    return [
        _DictionaryPages(distinct[c], (bytes([width]) + head, bits)) if width else None
        for c, (width, (head, bits)) in enumerate(zip(widths, bodies, strict=True))
    ]


def _packed(codes: Columns, numbers: Columns | None, widths: Sequence[int]) -> list[tuple[bytes, Piece]]:
    """The ``numbers`` of the codes of each column as one run of packed bits, of whole groups of eight: (header, bits)."""
    groups = -(-(codes.ends - codes.begins) // 8)
    starts = np.zeros(len(groups) + 1, np.int64)
    np.cumsum(groups * widths // 8 + 1, out=starts[1:])
    out = np.empty(starts[-1], np.uint64)
    table, begins = (
        (_THEMSELVES, np.zeros(len(groups), np.int64))
        if numbers is None
        else (numbers.values, numbers.begins)
    )
    pack_columns(codes.values, codes.begins, codes.ends, table, begins, np.array(widths), out, starts)
    stored = out.view(np.uint8).data
    return [
        (thrift.varint(count << 1 | 1), stored[start : start + count * width])
        for count, width, start in zip(groups.tolist(), widths, (8 * starts[:-1]).tolist(), strict=True)
    ]


def _deltas(words: NDArray[np.uint32]) -> memoryview:
    out = np.empty(deltas_room(len(words)), np.uint8)
    return out.data[: pack_deltas(words, out)]


def _levels(array: pa.Array) -> tuple[int, bytes]:
    """How many levels lists have, and the levels as a page wants them."""
    room = len(array.flatten()) + len(array)
    repetition, definition = np.empty(room, np.uint16), np.empty(room, np.uint16)
    count = list_levels(array.offsets.to_numpy(), repetition, definition)
    parts = _packed(Columns.joined([repetition[:count], definition[:count]]), None, [1, 1])
    runs = [b"".join(part) for part in parts]
    return count, b"".join(len(run).to_bytes(4, "little") + run for run in runs)


def _codec(compression: str, level: int | None) -> Any:
    if compression == "none":
        return None
    if compression == "zstd":
        return pa.Codec("zstd", compression_level=level)
    return pa.Codec("lz4_raw" if compression == "lz4" else compression)


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
