"""Deltas of exports: the bytes that changed since an earlier export, from which the new export is made again.

    DELTA/delta.json      the checksums of both exports, and the record of the new one; written last
    DELTA/<name>.patch    the changes of one file, as one zstd stream

A changed file is cut into pieces of three kinds: rows of a table, compared with the same rows of the base; bytes
between rows, compared as 4-byte numbers if the base has as many there; and new bytes. A patch holds the list of the
pieces. A piece of rows then has, for each block, the number of changed rows, the gaps between their numbers, and the
differences of their bytes, ordered by the place in the row. A piece of new bytes has the bytes.

The places of rows in a file are hints: a wrong one makes a delta larger. The result is verified by checksums.
"""

import mmap
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.checksums import checksum, differences
from dlrm_app.errors import DataError, Problem
from dlrm_app.inference.record import (
    DELTA,
    DELTA_FORMAT,
    EXPORT_FORMAT,
    RECORD,
    DeltaRecord,
    ExportRecord,
    RowsAt,
    check_files,
    mark_files,
    read_delta,
    read_export,
    refuse_other_base,
)
from dlrm_app.text import bytes_text

_HEAD_BYTES = 1 << 10
_BLOCK_BYTES = 1 << 23
_NUMBER_BYTES = 4

Bytes = NDArray[np.uint8]


class DeltaPiece(NamedTuple):
    """The next ``bytes`` of a file.

    ``base_offset``: where the base has these rows, of ``row_bytes`` each; -1 for new bytes.
    """

    bytes: int
    base_offset: int = -1
    row_bytes: int = 1


def locate_rows(path: Path, blocks: Iterable[tuple[str, int, Bytes]]) -> list[RowsAt]:
    """The places of ``blocks`` of rows (table, first row, rows [R, W]) in the file ``path``.

    Rows that the file does not hold are left out. The search is fast if the file has them in this order.
    """
    found: list[RowsAt] = []
    after = 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        whole = np.frombuffer(data, np.uint8)
        for name, first_row, rows in blocks:
            flat, width, row = rows.reshape(-1), rows.shape[1], 0
            while row < len(rows):
                head = flat[row * width : row * width + _HEAD_BYTES].tobytes()
                offset = data.find(head, after)
                offset = data.find(head) if offset < 0 else offset
                equal = _equal_bytes(whole[offset:], flat[row * width :]) // width if offset >= 0 else 0
                if not equal:
                    break
                _add_rows(found, RowsAt(name, first_row + row, offset, equal, width))
                row += equal
                after = offset + equal * width
        del whole  # which keeps the file mapped
    return found


def _add_rows(found: list[RowsAt], at: RowsAt) -> None:
    """Adds ``at`` to ``found``, as part of the last entry if it continues that."""
    if found:
        last = found[-1]
        end = last.offset + last.rows * last.row_bytes
        if (last.table, last.first_row + last.rows, end) == (at.table, at.first_row, at.offset):
            found[-1] = replace(last, rows=last.rows + at.rows)
            return
    found.append(at)


def _equal_bytes(first: Bytes, second: Bytes) -> int:
    length = min(len(first), len(second))
    for start, stop in _blocks(DeltaPiece(length)):
        unequal = first[start:stop] != second[start:stop]
        if unequal.any():
            return start + int(unequal.argmax())
    return length


def write_delta(base: Path, full: Path, delta: Path) -> DeltaRecord:
    """Writes the delta from the export ``base`` to the export ``full``. Raises DataError if ``base`` is damaged."""
    before, after = read_export(base), read_export(full)
    check_files(base, before.files)
    patched = [name for name, mark in after.files.items() if before.files.get(name) != mark]
    for name in patched:
        old, new = _mapped(base, name, before), _mapped(full, name, after)
        pieces = cut_pieces(old, new, _places(before, base, name), _places(after, full, name))
        patch = delta / f"{name}.patch"
        patch.parent.mkdir(parents=True, exist_ok=True)
        with patch.open("wb") as file, pa.CompressedOutputStream(file, "zstd") as stream:
            write_patch(stream, old, new, pieces)
    record = DeltaRecord(
        base=checksum(base / RECORD),
        base_step=before.step,
        result=checksum(full / RECORD),
        record=after,
        patched=patched,
        files=mark_files(delta, [delta / f"{name}.patch" for name in patched]),
    )
    DELTA_FORMAT.write(delta / DELTA, record)
    return record


def _mapped(folder: Path, name: str, record: ExportRecord) -> Bytes:
    """The bytes of a file of an export; none if it has no such file."""
    is_empty = name not in record.files or not record.files[name].bytes
    return np.empty(0, np.uint8) if is_empty else np.memmap(folder / name, np.uint8, mode="r")


def _places(record: ExportRecord, folder: Path, name: str) -> list[RowsAt]:
    """The places of rows in a file. A vocabulary grows at its end: its columns count as rows of 8 bytes."""
    path = folder / name
    if name in record.rows or path.suffix != ".parquet" or not path.is_file():
        return record.rows.get(name, [])
    metadata, places = pq.read_metadata(path), []
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            begin = min(filter(None, (column.dictionary_page_offset, column.data_page_offset)))
            places.append(RowsAt(column.path_in_schema, group, begin, column.total_compressed_size // 8, 8))
    return places


def cut_pieces(old: Bytes, new: Bytes, old_rows: list[RowsAt], new_rows: list[RowsAt]) -> list[DeltaPiece]:
    """The pieces of ``new``: rows that the base has too, and the bytes between them."""
    known = {(at.table, at.first_row, at.row_bytes): at for at in old_rows if _lies_in(old, at)}
    pieces, end, old_end = [], 0, 0
    for at in sorted((at for at in new_rows if _lies_in(new, at)), key=lambda at: at.offset):
        there = known.get((at.table, at.first_row, at.row_bytes))
        if there is None or at.offset < end:
            continue
        num_bytes = min(at.rows, there.rows) * at.row_bytes
        pieces += _between(at.offset - end, old_end, there.offset)
        pieces.append(DeltaPiece(num_bytes, there.offset, at.row_bytes))
        end, old_end = at.offset + num_bytes, there.offset + num_bytes
    return pieces + _between(len(new) - end, old_end, len(old))


def _between(num_bytes: int, old_begin: int, old_end: int) -> list[DeltaPiece]:
    """The pieces between rows: 4-byte numbers if the base has as many bytes there, otherwise new bytes."""
    whole = num_bytes // _NUMBER_BYTES * _NUMBER_BYTES if num_bytes == old_end - old_begin else 0
    return [DeltaPiece(whole, old_begin, _NUMBER_BYTES), DeltaPiece(num_bytes - whole)]


def _lies_in(data: Bytes, at: RowsAt) -> bool:
    return min(at.offset, at.rows, at.row_bytes - 1) >= 0 and at.offset + at.rows * at.row_bytes <= len(data)


def write_patch(stream: pa.NativeFile, old: Bytes, new: Bytes, pieces: list[DeltaPiece]) -> None:
    """Writes the list of pieces, then the changes of each."""
    at = 0
    stream.write(np.array([len(pieces)], "<i8"))
    stream.write(np.array(pieces, "<i8"))
    for piece in pieces:
        there = old[piece.base_offset :]
        for begin, end in _blocks(piece):
            if piece.base_offset < 0:
                stream.write(new[at + begin : at + end])
            else:
                rows = new[at + begin : at + end].reshape(-1, piece.row_bytes)
                base = there[begin:end].reshape(-1, piece.row_bytes)
                changed = np.flatnonzero((rows != base).any(1))
                stream.write(np.array([len(changed)], "<u4"))
                stream.write(np.diff(changed, prepend=0).astype("<u4"))
                stream.write((rows[changed] - base[changed]).T.copy())
        at += piece.bytes


def _blocks(piece: DeltaPiece) -> Iterator[tuple[int, int]]:
    """(begin, end) of blocks of whole rows of a piece."""
    step = max(1, _BLOCK_BYTES // piece.row_bytes) * piece.row_bytes
    return ((begin, min(begin + step, piece.bytes)) for begin in range(0, piece.bytes, step))


def apply_delta(base: Path, delta: Path, target: Path) -> DeltaRecord:
    """Writes the export that ``base`` and ``delta`` give to the folder ``target``; its record last.

    Raises DataError for another base than the delta's, for damaged files, and if the result is not the export.
    """
    record = read_delta(delta)
    refuse_other_base(base, delta, record)
    before = read_export(base)
    check_files(base, before.files)
    check_files(delta, record.files)
    for name in record.record.files:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name not in record.patched:
            shutil.copyfile(base / name, path)
            continue
        old = _mapped(base, name, before)
        with (
            (delta / f"{name}.patch").open("rb") as patch,
            pa.CompressedInputStream(patch, "zstd") as stream,
            path.open("wb") as file,
        ):
            for part in apply_patch(stream, old):
                file.write(part)
    marks = {name: (mark.bytes, mark.checksum) for name, mark in record.record.files.items()}
    EXPORT_FORMAT.write(target / RECORD, record.record)
    marks[RECORD] = ((target / RECORD).stat().st_size, record.result)
    if problems := differences(target, marks):
        raise DataError(Problem(str(delta), "does not give the export that it was made for"), *problems)
    return record


def apply_patch(stream: pa.NativeFile, old: Bytes) -> Iterator[bytes | memoryview]:
    """The bytes of a file, part by part: applies what ``write_patch`` wrote to ``old``."""
    (count,) = np.frombuffer(stream.read(8), "<i8")
    for values in np.frombuffer(stream.read(24 * int(count)), "<i8").reshape(-1, 3).tolist():
        piece = DeltaPiece(*values)
        there = old[piece.base_offset :]
        for begin, end in _blocks(piece):
            if piece.base_offset < 0:
                yield stream.read(end - begin)
            else:
                rows = there[begin:end].reshape(-1, piece.row_bytes).copy()
                (count,) = np.frombuffer(stream.read(4), "<u4")
                changed = np.cumsum(np.frombuffer(stream.read(4 * int(count)), "<u4"), dtype=np.int64)
                added = np.frombuffer(stream.read(int(count) * piece.row_bytes), np.uint8)
                rows[changed] += added.reshape(piece.row_bytes, -1).T
                yield rows.reshape(-1).data


def describe(record: DeltaRecord) -> str:
    """The size of a delta, compared with the export's."""
    size, full = (sum(mark.bytes for mark in marks.values()) for marks in (record.files, record.record.files))
    return f"delta: {bytes_text(size)}, {size / full:.1%} of the export's {bytes_text(full)}"
