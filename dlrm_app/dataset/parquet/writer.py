"""A writer of Parquet files for what datasets hold: columns of 32 bits without nulls, and lists of such.

Its reason is in docs/adr/0008-a-parquet-writer-of-our-own.md. The format: https://parquet.apache.org/docs/file-format/.

Each column settles in its first row group on what pays, and keeps to it: a dictionary until a row group has too many
values; without one, bytes split and compressed (ids by LZ4, which reads twice as fast), if that saves enough. So a
file depends on its rows alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from isal import isal_zlib
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import numbers_of
from dlrm_app.dataset.parquet import thrift
from dlrm_app.dataset.parquet.format import (
    BYTE_STREAM_SPLIT,
    CODECS,
    DATA_ENCODINGS,
    DICTIONARY_HEADER,
    HEADERS,
    PLAIN,
    RLE_DICTIONARY,
    describe,
)
from dlrm_app.dataset.parquet.pages import list_levels, pack_columns, split_bytes
from dlrm_app.preprocess.units.dictionary import Columns, Indexed, Indexer, index_columns, repeating

_MAGIC = b"PAR1"
_WORTH = {RLE_DICTIONARY: 0.3, BYTE_STREAM_SPLIT: 0.8}
"""Compression pays if it leaves at most this share of a page."""
_SAMPLE = 1 << 11
"""Bytes that are compressed to find that out."""
_NO_WORDS = np.empty(0, np.uint32)
_THEMSELVES = np.arange(1 << 16, dtype=np.uint16)

Piece = bytes | memoryview
"""A part of a page."""


class ParquetWriter:
    """Writes row groups of ``schema`` by ``write``, which takes the next bytes of the file."""

    def __init__(
        self, write: Callable[[bytes], object], schema: pa.Schema, compression: str, level: int | None
    ) -> None:
        """``compression``: zstd, lz4, snappy or none; ``level`` is zstd's."""
        self._write_bytes = write
        self._schema = describe(schema)
        codec = _codec(compression, level)
        fast_codec = codec and _codec("lz4", None)
        self._columns = [
            _Column(codec, codec if field.type == pa.float32() else fast_codec) for field in schema
        ]
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
        plain = self._indexer.index(Columns.joined([value.words for value in values]))
        plain_pages = _dictionary_pages(plain.codes, plain.distinct, None)
        given_pages = [] if indexed is None else _joined_pages(indexed)
        chunks = [
            writer.encode(value, given_pages[column] if isinstance(column, int) else pages)
            for writer, value, column, pages in zip(self._columns, values, columns, plain_pages, strict=True)
        ]
        pieces, metadata = self._assemble(chunks)
        before = self._at
        self._write(pieces)
        size = thrift.i64(self._at - before)
        self._groups.append(thrift.struct({1: thrift.items(metadata), 2: size, 3: thrift.i64(num_rows)}))
        self._rows += num_rows

    def _assemble(self, chunks: Sequence["_Chunk"]) -> tuple[list[Piece], list[thrift.Value]]:
        """(the pages of a row group with their headers, the metadata of its chunks)."""
        pages = [page for chunk in chunks for page in chunk.pages]
        numbers = [number for page in pages for number in (page.size, page.stored, page.crc, page.count)]
        heads = iter(HEADERS.fill([page.form for page in pages], numbers))
        pieces: list[Piece] = []
        forms, numbers, at = [], [], self._at
        for column, chunk in enumerate(chunks):
            start, size, raw_size, offsets = at, 0, 0, []
            for page in chunk.pages:
                head = next(heads)
                pieces += [head, *page.body]
                offsets.append(start + size)
                size += len(head) + page.stored
                raw_size += len(head) + page.size
            at += size
            forms.append(self._schema.form(column, chunk.encoding))
            codec = CODECS["none"] if chunk.codec is None else chunk.codec.number
            numbers += [start, codec, chunk.pages[-1].count, raw_size, size, *reversed(offsets)]
        return pieces, [thrift.filled(data) for data in self._schema.metadata.fill(forms, numbers)]

    def close(self) -> None:
        """Writes the footer."""
        fields = {
            1: thrift.i32(2),
            2: thrift.items(self._schema.elements),
            3: thrift.i64(self._rows),
            4: thrift.items(self._groups),
            6: thrift.text("dlrm-app"),
        }
        footer = thrift.data_of(thrift.struct(fields))
        self._write([footer, len(footer).to_bytes(4, "little"), _MAGIC])

    def _write(self, pieces: Sequence[Piece]) -> None:
        data = b"".join(pieces)
        self._write_bytes(data)
        self._at += len(data)


@dataclass(frozen=True, slots=True)
class _Values:
    """A column of a row group: ``count`` values or levels, the levels of its lists, the bits of plain values."""

    count: int
    levels: bytes
    words: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class _DictionaryPages:
    """Distinct values, and what stands in the page of data."""

    dictionary: NDArray[np.uint32]
    body: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class _Page:
    """``form`` of the header, what the header says, and what stands behind it."""

    form: int
    body: tuple[Piece, ...]
    count: int
    size: int
    stored: int
    crc: int


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A column of a row group: its pages, the one with the data last."""

    pages: list[_Page]
    encoding: int
    codec: "_Codec | None"


@dataclass(frozen=True, slots=True)
class _Codec:
    """A codec and its number in Parquet."""

    number: int
    compress: Callable[..., bytes]


class _Column:
    """What the row groups of a column have settled on."""

    def __init__(self, dictionary_codec: _Codec | None, split_codec: _Codec | None) -> None:
        self._codecs = {RLE_DICTIONARY: dictionary_codec, BYTE_STREAM_SPLIT: split_codec}
        self._settled: set[int] = set()

    def encode(self, values: _Values, coded: _DictionaryPages | None) -> _Chunk:
        """The chunk of a row group."""
        pages = []
        if coded is not None:
            body, encoding = coded.body, RLE_DICTIONARY
            codec = self._paying_codec(encoding, body)
            dictionary = (coded.dictionary.view(np.uint8).data,)
            pages.append(self._page(DICTIONARY_HEADER, dictionary, len(coded.dictionary), codec))
        else:
            body, encoding, codec = (values.words.view(np.uint8).data,), PLAIN, None
            if len(values.words) and self._codecs[BYTE_STREAM_SPLIT] is not None:
                planes = _split(values.words)
                codec = self._paying_codec(BYTE_STREAM_SPLIT, planes)
                if codec is not None:
                    body, encoding = planes, BYTE_STREAM_SPLIT
        if values.levels:
            body = (values.levels, *body)
        pages.append(self._page(DATA_ENCODINGS.index(encoding), body, values.count, codec))
        return _Chunk(pages, encoding, codec)

    @staticmethod
    def _page(form: int, body: tuple[Piece, ...], count: int, codec: _Codec | None) -> _Page:
        size = stored = sum(map(len, body))
        if codec is not None:
            body = (codec.compress(b"".join(body), asbytes=True),)
            stored = len(body[0])
        crc = 0
        for piece in body:
            crc = isal_zlib.crc32(piece, crc)
        return _Page(form, body, count, size, stored, crc - (crc >> 31 << 32))

    def _paying_codec(self, encoding: int, body: tuple[Piece, ...]) -> _Codec | None:
        """The codec of an encoding, if it saved enough of its first page that is not empty."""
        codec = self._codecs[encoding]
        if codec is not None and encoding not in self._settled:
            sample = b"".join(bytes(piece[: _SAMPLE // len(body)]) for piece in body)
            if len(codec.compress(sample, asbytes=True)) > _WORTH[encoding] * len(sample):
                self._codecs[encoding] = None
            self._settled.add(encoding)
        return self._codecs[encoding]


def _values(array: pa.Array) -> _Values:
    """A column that is plain, without nulls."""
    if pa.types.is_list(array.type):
        count, levels = _levels(array)
        return _Values(count, levels, _words(array.flatten()))
    return _Values(len(array), b"", _words(array))


def _words(array: pa.Array) -> NDArray[np.uint32]:
    """The bits of values."""
    values = numbers_of(array)
    if values.itemsize != 4:
        return values.astype(np.uint32)
    words: NDArray[np.uint32] = values.view(np.uint32)
    return words


def _joined_pages(indexed: Indexed) -> list[_DictionaryPages | None]:
    """The pages of ``indexed``; where distinct keys have become equal values, those are numbered anew."""
    limits = repeating(indexed.distinct)
    joined = index_columns(indexed.distinct, limits, np.zeros(len(limits), np.uint32))
    again = _dictionary_pages(indexed.codes, joined.distinct, joined.codes)
    pages = _dictionary_pages(indexed.codes.where(limits == 0), indexed.distinct.where(limits == 0), None)
    return [new or page for new, page in zip(again, pages, strict=True)]


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


def _split(words: NDArray[np.uint32]) -> tuple[Piece, ...]:
    """All first bytes, all second ones, and so on."""
    planes = np.empty((4, len(words)), np.uint8)
    split_bytes(words, planes)
    return tuple(plane.data for plane in planes)


def _levels(array: pa.Array) -> tuple[int, bytes]:
    """How many levels lists have, and the levels as a page wants them."""
    room = len(array.flatten()) + len(array)
    repetition, definition = np.empty(room, np.uint16), np.empty(room, np.uint16)
    count = list_levels(numbers_of(array.offsets), repetition, definition)
    parts = _packed(Columns.joined([repetition[:count], definition[:count]]), None, [1, 1])
    runs = [b"".join(part) for part in parts]
    return count, b"".join(len(run).to_bytes(4, "little") + run for run in runs)


def _codec(compression: str, level: int | None) -> _Codec | None:
    if compression == "none":
        return None
    codec = pa.Codec(
        {"lz4": "lz4_raw"}.get(compression, compression), level if compression == "zstd" else None
    )
    return _Codec(CODECS[compression], codec.compress)
