"""Writes Parquet files for datasets: columns of 32-bit values without nulls, and lists of such values.

docs/adr/0008-a-parquet-writer-of-our-own.md gives the reasons. https://parquet.apache.org/docs/file-format/ describes
the format.

Each column chooses an encoding in its first row group and keeps it: a dictionary until a row group has too many
values; otherwise split and compressed bytes (LZ4 for ids, which reads twice as fast), if that saves enough. So a
file depends only on its rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from isal import isal_zlib
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import Bags
from dlrm_app.dataset.dictionary import (
    Indexed,
    IndexedColumn,
    IndexedRows,
    Indexer,
    JaggedColumns,
    index_columns,
    repeating,
)
from dlrm_app.dataset.parquet_format import (
    BYTE_STREAM_SPLIT,
    CODECS,
    PLAIN,
    RLE_DICTIONARY,
    ColumnFormat,
    Value,
    footer,
    page_header,
    row_group,
    varint,
)
from dlrm_app.kernels.compiled import njit

MAGIC = b"PAR1"
MAX_COMPRESSED_SHARE = {RLE_DICTIONARY: 0.3, BYTE_STREAM_SPLIT: 0.8}
"""Compression pays if a page shrinks to at most this share."""
SAMPLE_BYTES = 1 << 11
"""Bytes of a page that are compressed to test this."""
IDENTITY = np.arange(1 << 16, dtype=np.uint16)

PageBytes = bytes | memoryview
"""A part of a page."""


class ParquetWriter:
    """Writes row groups of ``schema``. ``write`` is called with the next bytes of the file."""

    def __init__(self, write: Callable[[bytes], object], schema: pa.Schema) -> None:
        self._write_bytes = write
        self._columns = [_ColumnWriter(field) for field in schema]
        self._indexer = Indexer(np.zeros(len(schema), np.uint32))
        self._groups: list[Value] = []
        self.row_groups: list[int] = []
        """The number of rows of each row group."""
        self.num_bytes = 0
        self._append([MAGIC])

    def write(self, rows: IndexedRows) -> None:
        """Writes ``rows`` as one row group."""
        values = [_ColumnValues.of(column, len(rows)) for column in rows.columns]
        tried = zip(values, self._indexer.has_given_up.tolist(), strict=True)
        words = [value.words[:0] if has_given_up else value.words for value, has_given_up in tried]
        plain = self._indexer.index(JaggedColumns.joined(words))
        plain_pages = _dictionary_pages(plain.codes, plain.distinct, None)
        given_pages = [] if rows.indexed is None else _joined_pages(rows.indexed)
        pieces: list[PageBytes] = []
        chunks, end = [], self.num_bytes
        parts = zip(self._columns, values, rows.columns, plain_pages, strict=True)
        for writer, value, column, pages in parts:
            coded = given_pages[column.number] if isinstance(column, IndexedColumn) else pages
            chunk, end = writer.write(value, coded, pieces, end)
            chunks.append(chunk)
        self._groups.append(row_group(chunks, end - self.num_bytes, len(rows)))
        self._append(pieces)
        self.row_groups.append(len(rows))

    def close(self) -> None:
        """Writes the footer."""
        data = footer([column.format for column in self._columns], self._groups, sum(self.row_groups))
        self._append([data, len(data).to_bytes(4, "little"), MAGIC])

    def _append(self, pieces: Sequence[PageBytes]) -> None:
        data = b"".join(pieces)
        self._write_bytes(data)
        self.num_bytes += len(data)


@dataclass(frozen=True, slots=True)
class _ColumnValues:
    """A column of a row group: ``count`` values or levels, the levels of lists, the bits of plain values."""

    count: int
    levels: bytes
    words: NDArray[np.uint32]

    @classmethod
    def of(cls, column: NDArray[Any] | Bags | IndexedColumn, num_rows: int) -> "_ColumnValues":
        """The values of a plain column; only their number for an indexed one."""
        if isinstance(column, IndexedColumn):
            return cls(num_rows, b"", np.empty(0, np.uint32))
        if isinstance(column, Bags):
            count, levels = _levels(column)
            return cls(count, levels, _words(column.values))
        return cls(num_rows, b"", _words(column))


def _words(values: NDArray[Any]) -> NDArray[np.uint32]:
    words: NDArray[np.uint32] = values.view(np.uint32) if values.itemsize == 4 else values.astype(np.uint32)
    return words


def _levels(bags: Bags) -> tuple[int, bytes]:
    """(number of levels of lists, the levels as stored in a page)."""
    room = len(bags.values) + len(bags.offsets) - 1
    repetition, definition = np.empty(room, np.uint16), np.empty(room, np.uint16)
    count = _list_levels(bags.offsets, repetition, definition)
    parts = _packed(JaggedColumns.joined([repetition[:count], definition[:count]]), None, [1, 1])
    runs = [b"".join(part) for part in parts]
    return count, b"".join(len(run).to_bytes(4, "little") + run for run in runs)


_Codec = tuple[int, Callable[..., bytes]]
"""(a codec's number in Parquet, its compress function)."""


class _ColumnWriter:
    """Writes a column; its first row groups decide the encoding and the codec."""

    def __init__(self, field: pa.Field) -> None:
        self.format = ColumnFormat.of(field)
        zstd = CODECS["zstd"], pa.Codec("zstd", 1).compress
        lz4 = CODECS["lz4"], pa.Codec("lz4_raw").compress
        self._codecs: dict[int, _Codec | None] = {
            RLE_DICTIONARY: zstd,
            BYTE_STREAM_SPLIT: zstd if field.type == pa.float32() else lz4,
        }
        self._settled: set[int] = set()

    def write(
        self, values: _ColumnValues, coded: "_DictionaryPages | None", pieces: list[PageBytes], start: int
    ) -> tuple[Value, int]:
        """Adds the pages of a row group, which begin at ``start``, to ``pieces``.

        Returns (the footer's entry, the end).
        """
        pages: list[tuple[int | None, tuple[PageBytes, ...], int]] = []
        if coded is not None:
            distinct, body = coded
            encoding, codec = RLE_DICTIONARY, self._paying_codec(RLE_DICTIONARY, body)
            pages.append((None, (distinct.view(np.uint8).data,), len(distinct)))
        else:
            encoding, codec, body = self._without_dictionary(values.words)
        pages.append((encoding, (values.levels, *body) if values.levels else body, values.count))
        end, raw_size, offsets = start, 0, []
        for page_encoding, page, count in pages:
            page_size = stored = sum(map(len, page))
            if codec is not None:
                page = (codec[1](b"".join(page), asbytes=True),)
                stored = len(page[0])
            crc = 0
            for piece in page:
                crc = isal_zlib.crc32(piece, crc)
            head = page_header(page_encoding, page_size, stored, crc, count)
            pieces += (head, *page)
            offsets.append(end)
            raw_size += len(head) + page_size
            end += len(head) + stored
        number = CODECS["none"] if codec is None else codec[0]
        return self.format.chunk(encoding, number, values.count, raw_size, end - start, offsets), end

    def _without_dictionary(
        self, words: NDArray[np.uint32]
    ) -> tuple[int, _Codec | None, tuple[PageBytes, ...]]:
        """(encoding, codec, page) of values without a dictionary."""
        if len(words) and self._codecs[BYTE_STREAM_SPLIT] is not None:
            split = np.empty((4, len(words)), np.uint8)
            _split_bytes(words, split)
            planes = tuple(plane.data for plane in split)
            if codec := self._paying_codec(BYTE_STREAM_SPLIT, planes):
                return BYTE_STREAM_SPLIT, codec, planes
        return PLAIN, None, (words.view(np.uint8).data,)

    def _paying_codec(self, encoding: int, body: tuple[PageBytes, ...]) -> _Codec | None:
        """The codec of an encoding, if it saves enough on the first page that is not empty."""
        codec = self._codecs[encoding]
        if codec is not None and encoding not in self._settled:
            sample = b"".join(bytes(piece[: SAMPLE_BYTES // len(body)]) for piece in body)
            if len(codec[1](sample, asbytes=True)) > MAX_COMPRESSED_SHARE[encoding] * len(sample):
                self._codecs[encoding] = None
            self._settled.add(encoding)
        return self._codecs[encoding]


_DictionaryPages = tuple[NDArray[np.uint32], tuple[PageBytes, ...]]
"""(distinct values, content of the data page)."""


def _joined_pages(indexed: Indexed[np.uint32]) -> list[_DictionaryPages | None]:
    """The pages of ``indexed``. If distinct keys have become equal values, the values are numbered again."""
    distinct = indexed.distinct
    limits = repeating(distinct.values, distinct.begins, distinct.ends)
    joined = index_columns(distinct, limits, np.zeros(len(limits), np.uint32))
    again = _dictionary_pages(indexed.codes, joined.distinct, joined.codes)
    pages = _dictionary_pages(indexed.codes.where(limits == 0), distinct.where(limits == 0), None)
    return [new or page for new, page in zip(again, pages, strict=True)]


def _dictionary_pages(
    codes: JaggedColumns[np.uint16],
    distinct: JaggedColumns[np.uint32],
    numbers: JaggedColumns[np.uint16] | None,
) -> list[_DictionaryPages | None]:
    """The pages of columns with dictionaries; None for others.

    ``numbers``: code → number of the distinct value; None: the code itself.
    """
    sizes = distinct.ends - distinct.begins
    widths = [int(size - 1).bit_length() or 1 if size else 0 for size in sizes.tolist()]
    bodies = _packed(codes, numbers, widths)
    return [
        (distinct[c], (bytes([width]) + head, bits)) if width else None
        for c, (width, (head, bits)) in enumerate(zip(widths, bodies, strict=True))
    ]


def _packed(
    codes: JaggedColumns[np.uint16], numbers: JaggedColumns[np.uint16] | None, widths: Sequence[int]
) -> list[tuple[bytes, PageBytes]]:
    """(header, bits) of each column: the ``numbers`` of its codes as a run of packed bits, in whole groups of eight."""
    groups = -(-(codes.ends - codes.begins) // 8)
    starts = np.zeros(len(groups) + 1, np.int64)
    np.cumsum(groups * widths // 8 + 1, out=starts[1:])
    out = np.empty(starts[-1], np.uint64)
    if numbers is None:
        table, begins = IDENTITY, np.zeros(len(groups), np.int64)
    else:
        table, begins = numbers.values, numbers.begins
    _pack_columns(codes.values, codes.begins, codes.ends, table, begins, np.array(widths), out, starts)
    stored = out.view(np.uint8).data
    return [
        (varint(count << 1 | 1), stored[start : start + count * width])
        for count, width, start in zip(groups.tolist(), widths, (8 * starts[:-1]).tolist(), strict=True)
    ]


_64 = np.uint64(64)


@njit(nogil=True, cache=True)
def _pack_columns(  # type: ignore[no-untyped-def]  # compiled
    codes, begins, ends, numbers, numbers_begins, widths, out, starts
):
    """Packs the lowest ``widths[c]`` bits of numbers[code] for every code of column c into out[starts[c]:] (uint64).

    Codes of column c are codes[begins[c]:ends[c]], numbers those from numbers_begins[c] on. There must be
    n * width // 64 + 1 words for n codes; words left over become 0. A column of width 0 is skipped.
    """
    for c in range(len(widths)):
        if widths[c] > 0:
            table = numbers[numbers_begins[c] :]
            pack_bits(codes[begins[c] : ends[c]], table, widths[c], out[starts[c] : starts[c + 1]])


@njit(nogil=True, cache=True)
def pack_bits(codes, numbers, width, words):  # type: ignore[no-untyped-def]  # compiled
    """Packs the lowest ``width`` bits of ``numbers[code]`` for every code into ``words`` (uint64)."""
    width = np.uint64(width)
    word, used, at = np.uint64(0), np.uint64(0), np.uint64(0)
    for i in range(len(codes)):
        number = np.uint64(numbers[codes[i]])
        word |= number << used
        used += width
        if used >= _64:
            words[at] = word
            at += np.uint64(1)
            used -= _64
            word = number >> (width - used)
    words[at] = word
    words[np.int64(at) + 1 :] = 0


@njit(nogil=True, cache=True)
def _split_bytes(values, out):  # type: ignore[no-untyped-def]  # compiled
    """Writes all first bytes of ``values``, then all second ones, and so on; out: uint8 [4, n]."""
    for byte in range(4):
        shift = np.uint32(8 * byte)
        for i in range(len(values)):
            out[byte, i] = np.uint8(values[i] >> shift)


@njit(nogil=True, cache=True)
def _list_levels(ends, repetition, definition):  # type: ignore[no-untyped-def]  # compiled
    """Fills the levels of the lists with bounds ``ends`` [R + 1]; returns their number.

    An empty list has one level, with definition 0.
    """
    at = 0
    for row in range(len(ends) - 1):
        length = ends[row + 1] - ends[row]
        for element in range(max(length, 1)):
            repetition[at] = element > 0
            definition[at] = length > 0
            at += 1
    return at
