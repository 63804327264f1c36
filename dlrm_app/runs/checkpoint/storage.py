"""A checkpoint's tensors as plain bytes, and their places as JSON: no pickles.

    rank-00000.tensors   the pieces that one rank wrote, one after another: values in C order, little-endian
    index.json           type and size of each tensor; offsets, sizes, file and place of each of its pieces

torch.distributed.checkpoint (DCP) decides which rank writes which piece. The bytes are written and read here, in blocks
of rows: neither a save nor a load needs a copy of a table, and a load reads only the rows that it needs.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from dlrm_app.checksums import PartChecksums, describe_files, text_checksum, write_hashed
from dlrm_app.distributed.collectives import while_others_wait
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import DataError, Problem
from dlrm_app.files import escapes, write_text
from dlrm_app.runs.checkpoint.ranges import PART_BYTES, FileParts, Range, parts_name, ranges_read, write_parts
from dlrm_app.runs.checkpoint.tensors import Pieces
from dlrm_app.stores.names import url_of
from dlrm_app.text import json_text

INDEX = "index.json"
VERSION = 2
BLOCK_BYTES = 1 << 26
"""The most bytes that a block of rows has, unless one row has more."""


def row_blocks(values: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yields the rows of ``values`` in host memory, in blocks of at most BLOCK_BYTES.

    On CPU they are views, no copies.
    """
    rows = values.detach().reshape(1) if values.dim() == 0 else values.detach()
    for block in torch.split(rows, _rows_per_block(rows.dtype, rows.size())):
        yield block.cpu().contiguous()


def _rows_per_block(dtype: torch.dtype, size: Sequence[int]) -> int:
    return max(1, BLOCK_BYTES // max(1, dtype.itemsize * prod(size[1:])))


def _bytes_of(values: torch.Tensor) -> memoryview:
    """The memory of contiguous ``values`` on the CPU, as bytes."""
    return values.reshape(-1).view(torch.uint8).numpy().data


class TensorWriter(FileSystemWriter):
    """Writes each rank's pieces into a file of its own and, last, index.json. ``group``: all ranks."""

    def __init__(self, path: Path, runtime: Runtime, group: dist.ProcessGroup | None) -> None:
        super().__init__(path)
        self._runtime = runtime
        self._group = group
        self.written: dict[str, tuple[int, str]] = {}
        """Name → (bytes, checksum) of each file that this rank wrote."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's file. The other ranks wait without a timeout."""
        results: Future[list[WriteResult]] = Future()
        results.set_result(while_others_wait(lambda: self._write(plan, planner), self._group))
        return results

    def _write(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        found = (planner.lookup_object(item.index) for item in plan.items)  # type: ignore[attr-defined]
        pieces: list[torch.Tensor] = list(found)
        blocks = (_bytes_of(block) for piece in pieces for block in row_blocks(piece))
        name = f"rank-{self._runtime.rank:05}.tensors"
        parts = PartChecksums(PART_BYTES) if url_of(Path(self.path)) else None
        with Path(self.path, name).open("wb") as file:
            others = [parts.update] if parts else []
            digest = write_hashed(file, blocks, self._runtime.use_device, *others)
            file.flush()
            os.fsync(file.fileno())
        sizes = [piece.numel() * piece.element_size() for piece in pieces]
        *starts, total = accumulate(sizes, initial=0)
        self.written[name] = (total, digest)
        if parts:
            path = Path(self.path, parts_name(name))
            write_parts(path, FileParts(total, PART_BYTES, parts.result()))
            self.written |= describe_files(path.parent, [path.name])
        return [
            WriteResult(item.index, size, _StorageInfo(name, start, size))
            for item, start, size in zip(plan.items, starts, sizes, strict=True)
        ]

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Writes index.json; torch calls this on the first rank once all have written."""
        places = {
            (result.index.fqn, tuple(result.index.offset or ())): result.storage_data
            for rank_results in results
            for result in rank_results
        }
        tensors = {}
        for name, entry in metadata.state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):
                raise TypeError(f"{name} is not a tensor: only tensors belong in a checkpoint's files")
            located = [(chunk, places[name, tuple(chunk.offsets)]) for chunk in entry.chunks]
            tensors[name] = {
                "dtype": str(entry.properties.dtype).removeprefix("torch."),
                "size": list(entry.size),
                "pieces": [
                    [list(chunk.offsets), list(chunk.sizes), place.relative_path, place.offset, place.length]
                    for chunk, place in located
                ],
            }
        # without indent: json's C encoder makes a large index several times as fast
        text = json_text({"version": VERSION, "tensors": tensors}) + "\n"
        write_text(Path(self.path, INDEX), text)
        self.written[INDEX] = (len(text.encode()), text_checksum(text))


@dataclass(frozen=True)
class SavedPiece:
    """The place of a tensor's piece: its offsets in the tensor, and its bytes in a file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    num_bytes: int

    def row_bytes(self, dtype: torch.dtype) -> int:
        """The bytes of one row of the piece in its file."""
        return dtype.itemsize * prod(self.sizes[1:])


@dataclass(frozen=True)
class SavedTensor:
    """A tensor in a checkpoint. Its pieces do not overlap."""

    dtype: torch.dtype
    size: torch.Size
    pieces: Sequence[SavedPiece]

    @property
    def whole(self) -> SavedPiece:
        """The tensor as one piece, in no file."""
        return SavedPiece((0,) * len(self.size), tuple(self.size), "", 0, 0)


class TensorReader:
    """Reads the tensors of the checkpoint ``folder``. The index is parsed once, when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def tensors(self) -> Mapping[str, SavedTensor]:
        """The checkpoint's tensors by name. Raises DataError if the index is damaged."""
        path = self.folder / INDEX
        try:
            return parse_index(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            cure = "take it from a copy, name another checkpoint, or use the dlrm-app that saved it"
            raise DataError(Problem(str(path), f"is not an index of a checkpoint ({error})", cure)) from error

    @torch.no_grad()
    def fill(self, pieces: Pieces) -> None:
        """Fills ``pieces`` in place from all saved pieces that overlap them; each block of rows is read once.

        Values outside of the saved tensors stay as they are. Raises DataError if values are missing in the files.
        """
        by_name: dict[str, list[tuple[tuple[int, ...], torch.Tensor]]] = defaultdict(list)
        for (name, offsets), values in pieces.items():
            by_name[name].append((offsets, values.detach()))
        found = list[tuple[torch.dtype, SavedPiece, list[_Part]]]()
        for name, wanted in by_name.items():
            saved = self.tensors[name]
            missing = sum(part.target.numel() for part in _overlaps(saved.whole, wanted))
            overlaps = [(saved.dtype, piece, _overlaps(piece, wanted)) for piece in saved.pieces]
            found += [each for each in overlaps if each[2]]
            missing -= sum(part.target.numel() for _, _, parts in overlaps for part in parts)
            if missing:
                raise DataError(
                    Problem(str(self.folder), f"lacks {missing:,} values of {name}", "take it from a copy")
                )
        ranges: dict[str, list[Range]] = defaultdict(list)
        for dtype, piece, parts in found:
            ranges[piece.file] += [part.range_in(piece, dtype) for part in parts]
        with ranges_read(self.folder, ranges) as path_of:
            for dtype, piece, parts in found:
                for first, block in _blocks(path_of(piece.file), dtype, piece, parts):
                    for part in parts:
                        part.take(first, block)

    def rows(self, name: str, numbers: torch.Tensor) -> torch.Tensor:
        """The rows ``numbers`` [R], sorted, of the tensor ``name`` [rows, columns], read one by one.

        Raises DataError.
        """
        saved = self.tensors[name]
        values = torch.empty(len(numbers), saved.size[1], dtype=saved.dtype)
        for piece in saved.pieces:
            (first, left), (num_rows, width) = piece.offsets, piece.sizes
            low, high = torch.searchsorted(numbers, torch.tensor([first, first + num_rows])).tolist()
            if low < high and width:
                rows = self._rows_of(piece, saved.dtype, numbers[low:high] - first)
                values[low:high, left : left + width] = rows
        return values

    def _rows_of(self, piece: SavedPiece, dtype: torch.dtype, numbers: torch.Tensor) -> torch.Tensor:
        path, (num_rows, width) = self.folder / piece.file, piece.sizes
        if path.stat().st_size < piece.start + piece.num_bytes:
            raise DataError(Problem(str(path), "ends within a tensor", "take it from a copy"))
        shape = (num_rows, width * dtype.itemsize)
        # mapped: only the pages of these rows are read, and Linux may drop them again
        mapped = np.memmap(path, np.uint8, "r", piece.start, shape)
        return torch.from_numpy(mapped[numbers.numpy()]).view(dtype)


@dataclass(frozen=True)
class _Part:
    """The part of a saved piece that belongs to a tensor in memory: its box in the piece, and the view to fill."""

    box: tuple[slice, ...]
    target: torch.Tensor

    def needs(self, begin: int, end: int) -> bool:
        """True if the part has rows of the piece from ``begin`` to ``end``."""
        return begin < self.box[0].stop and self.box[0].start < end

    def range_in(self, piece: SavedPiece, dtype: torch.dtype) -> Range:
        """The bytes of the file of ``piece`` that have the part's rows."""
        row_bytes, rows = piece.row_bytes(dtype), self.box[0]
        return piece.start + rows.start * row_bytes, piece.start + rows.stop * row_bytes

    def take(self, first: int, block: torch.Tensor) -> None:
        """Copies its rows out of ``block``, which has the rows of the piece from ``first`` on."""
        rows, *columns = self.box
        begin, end = max(rows.start, first), min(rows.stop, first + len(block))
        if begin < end:
            values = block[(slice(begin - first, end - first), *columns)]
            self.target[begin - rows.start : end - rows.start].copy_(values)


def _blocks(
    path: Path, dtype: torch.dtype, piece: SavedPiece, parts: Sequence[_Part]
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yields (first row, rows) of the blocks of ``piece``, in the file at ``path``, that ``parts`` need.

    The next block overwrites the last.
    """
    sizes = piece.sizes or (1,)
    with path.open("rb") as file:
        num_rows, row_bytes = _rows_per_block(dtype, sizes), piece.row_bytes(dtype)
        memory = torch.empty(min(num_rows, sizes[0]) * row_bytes, dtype=torch.uint8)
        for first in range(0, sizes[0], num_rows):
            end = min(first + num_rows, sizes[0])
            if any(part.needs(first, end) for part in parts):
                block = memory[: (end - first) * row_bytes]
                file.seek(piece.start + first * row_bytes)
                if file.readinto(_bytes_of(block)) != len(block):
                    raise DataError(Problem(str(path), "ends within a tensor", "take it from a copy"))
                yield first, block.view(dtype).view(end - first, *sizes[1:])


def _overlaps(piece: SavedPiece, wanted: Sequence[tuple[tuple[int, ...], torch.Tensor]]) -> list[_Part]:
    """The parts of ``piece`` that belong to ``wanted``: (offsets, values) of pieces of the same tensor in memory."""
    parts = []
    for offsets, values in wanted:
        axes = zip(piece.offsets, piece.sizes, offsets, values.size(), strict=True)
        bounds = [(max(a, b), min(a + length, b + size)) for a, length, b, size in axes]
        if all(begin < end for begin, end in bounds):
            box, place = (
                tuple(
                    slice(begin - start, end - start)
                    for (begin, end), start in zip(bounds, starts, strict=True)
                )
                for starts in (piece.offsets, offsets)
            )
            parts.append(_Part(box, values[place]) if offsets else _Part((slice(0, 1),), values.reshape(1)))
    return parts


def parse_index(index: Mapping[str, Any]) -> dict[str, SavedTensor]:
    version = index.get("version")
    if version != VERSION:
        raise ValueError(f"it has version {version!r}, this program reads version {VERSION}")
    tensors = {}
    for name, entry in index["tensors"].items():
        pieces = [
            SavedPiece(tuple(offsets), tuple(sizes), _inside(file), start, num_bytes)
            for offsets, sizes, file, start, num_bytes in entry["pieces"]
        ]
        dtype = getattr(torch, entry["dtype"])
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{entry['dtype']!r} is not a tensor type")
        tensors[name] = SavedTensor(dtype, torch.Size(entry["size"]), pieces)
    return tensors


def _inside(name: str) -> str:
    if escapes(name):
        raise ValueError(f"{name!r} is outside the checkpoint's folder")
    return name
