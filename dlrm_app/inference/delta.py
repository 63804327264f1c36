"""Deltas of exports: what a day changed, and the full export again from an earlier one and its delta.

delta.json, written last, says which export it is from and to, by checksums, and holds the record of the one that it gives. A
file that changed is cut into pieces: rows of a table, which are compared with the same rows of the base, what lies between
them, compared by numbers of 4 bytes where the base has as much there, and new bytes.
NAME.patch is one zstd stream: the pieces; of each block of rows how many changed, the gaps between their numbers and their
bytes less the base's, byte by byte, all first bytes first; of new bytes the bytes themselves.
Where rows lie in a file is only a hint: wrong ones make a delta larger, and what is applied is compared by checksums.
"""

import mmap
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.errors import DataError, Problem
from dlrm_app.files import checksum, differences, write_json
from dlrm_app.inference.record import (
    DELTA,
    RECORD,
    DeltaRecord,
    ExportRecord,
    RowsAt,
    check_files,
    mark_files,
    read_delta,
    read_record,
    refuse_other_base,
)
from dlrm_app.text import bytes_text

_HEAD_BYTES = 1 << 10
_BLOCK_BYTES = 1 << 23
_NUMBER_BYTES = 4

Bytes = NDArray[np.uint8]


class DeltaPiece(NamedTuple):
    """The next ``bytes`` of a file: new ones, or rows of ``row_bytes``, those at ``base_offset`` of the base's of which some changed."""

    bytes: int
    base_offset: int = -1
    row_bytes: int = 1


def locate_rows(path: Path, blocks: Iterable[tuple[str, int, Bytes]]) -> list[RowsAt]:
    """Where ``path`` holds ``blocks`` of rows (table, first row, rows [R, W]), as far as it does; quick if it has them in this order."""
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
    """How many bytes both begin with alike."""
    length = min(len(first), len(second))
    for start, stop in _blocks(DeltaPiece(length)):
        unequal = first[start:stop] != second[start:stop]
        if unequal.any():
            return start + int(unequal.argmax())
    return length


def write_delta(base: Path, full: Path, delta: Path) -> DeltaRecord:
    """Writes to the folder ``delta`` what gives the export ``full`` from the export ``base``. Raises DataError if that is damaged."""
    before, after = read_record(base), read_record(full)
    check_files(base, before.files)
    patched = [name for name, mark in after.files.items() if before.files.get(name) != mark]
    for name in patched:
        old, new = _mapped(base, name, before), _mapped(full, name, after)
        pieces = _cut(old, new, _places(before, base, name), _places(after, full, name))
        patch = delta / f"{name}.patch"
        patch.parent.mkdir(parents=True, exist_ok=True)
        with patch.open("wb") as file, pa.CompressedOutputStream(file, "zstd") as stream:
            _write_patch(stream, old, new, pieces)
    record = DeltaRecord(
        base=checksum(base / RECORD),
        base_step=before.step,
        result=checksum(full / RECORD),
        record=after,
        patched=patched,
        files=mark_files(delta, [delta / f"{name}.patch" for name in patched]),
    )
    write_json(delta / DELTA, asdict(record))
    return record


def _mapped(folder: Path, name: str, record: ExportRecord) -> Bytes:
    """The bytes of a file of an export; none where it has no such file."""
    is_empty = name not in record.files or not record.files[name].bytes
    return np.empty(0, np.uint8) if is_empty else np.memmap(folder / name, np.uint8, mode="r")


def _places(record: ExportRecord, folder: Path, name: str) -> list[RowsAt]:
    """Where a file has rows; of a vocabulary, which grows at its end, the columns in pieces of 8 bytes."""
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


def _cut(old: Bytes, new: Bytes, old_rows: list[RowsAt], new_rows: list[RowsAt]) -> list[DeltaPiece]:
    """The pieces of ``new``: rows that the base has too, and what lies between."""
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
    """What lies between rows: where the base has as many bytes there, numbers of 4 bytes, else new bytes."""
    whole = num_bytes // _NUMBER_BYTES * _NUMBER_BYTES if num_bytes == old_end - old_begin else 0
    return [DeltaPiece(whole, old_begin, _NUMBER_BYTES), DeltaPiece(num_bytes - whole)]


def _lies_in(data: Bytes, at: RowsAt) -> bool:
    return min(at.offset, at.rows, at.row_bytes - 1) >= 0 and at.offset + at.rows * at.row_bytes <= len(data)


def _write_patch(stream: pa.NativeFile, old: Bytes, new: Bytes, pieces: list[DeltaPiece]) -> None:
    """Writes the pieces, and what the base lacks."""
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
    """(begin, end) of whole rows of a piece, as many as are looked at together."""
    step = max(1, _BLOCK_BYTES // piece.row_bytes) * piece.row_bytes
    return ((begin, min(begin + step, piece.bytes)) for begin in range(0, piece.bytes, step))


def apply_delta(base: Path, delta: Path, target: Path) -> DeltaRecord:
    """Writes the export that ``delta`` gives from ``base`` to the folder ``target``, its record last; every file is verified.

    Raises DataError for another base than the delta's, for damaged files, and where a file's checksum is not that of the export.
    """
    record = read_delta(delta)
    refuse_other_base(base, delta, record)
    before = read_record(base)
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
            for part in _patched(stream, old):
                file.write(part)
    marks = {name: (mark.bytes, mark.checksum) for name, mark in record.record.files.items()}
    write_json(target / RECORD, asdict(record.record))
    marks[RECORD] = ((target / RECORD).stat().st_size, record.result)
    if problems := differences(target, marks):
        raise DataError(Problem(str(delta), "does not give the export that it was made of"), *problems)
    return record


def _patched(stream: pa.NativeFile, old: Bytes) -> Iterator[bytes | memoryview]:
    """The bytes of a file, part by part: what ``_write_patch`` wrote, applied to ``old``."""
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
    """How large a delta is beside the export."""
    size, full = (sum(mark.bytes for mark in marks.values()) for marks in (record.files, record.record.files))
    return f"delta: {bytes_text(size)}, {size / full:.1%} of the export's {bytes_text(full)}"
