"""Rows of synthetic inputs → Parquet shards, several at a time, the same bytes with any number of threads."""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from tqdm import tqdm

from dlrm_app.data.manifest import Shard, Split
from dlrm_app.files import checksum, sync_folder
from dlrm_app.synthetic.inputs import LABEL, Inputs

GROUP_BYTES = 4 << 20
MIN_GROUP_ROWS, MAX_GROUP_ROWS = 256, 32768


@dataclass(frozen=True)
class Layout:
    """How rows are dealt to files: a power of two of rows per row group, near GROUP_BYTES, 16 groups a shard."""

    group_rows: int
    shard_groups: int = 16

    @property
    def shard_rows(self) -> int:
        """Rows of a whole shard."""
        return self.group_rows * self.shard_groups


@dataclass(frozen=True)
class Piece:
    """Rows [``first_row``, ``first_row + rows``) of the inputs, to be written to ``path`` of the dataset."""

    split: str
    path: str
    first_row: int
    rows: int


def choose_layout(row_bytes: int) -> Layout:
    """Small row groups: a reader of 64 lanes holds up to two of each lane in memory."""
    rows = 1 << int(math.log2(max(1, GROUP_BYTES // row_bytes)))
    return Layout(min(max(rows, MIN_GROUP_ROWS), MAX_GROUP_ROWS))


def write_splits(
    folder: Path,
    inputs: Inputs,
    sizes: Mapping[str, int],
    first_row: int,
    layout: Layout,
    threads: int | None = None,
) -> dict[str, Split]:
    """Writes ``sizes[split]`` rows of each split to ``folder``, those from ``first_row`` on; what was made of them."""
    pieces = list(_pieces(sizes, first_row, layout))
    for split in sizes:
        (folder / split).mkdir()
    stopped, lock = Event(), Lock()
    with (
        tqdm(total=sum(sizes.values()), unit=" rows", unit_scale=True, desc="writing") as bar,
        ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool,
    ):

        def count(rows: int) -> None:
            if stopped.is_set():
                raise InterruptedError("another shard failed, or the user has had enough")
            with lock:
                bar.update(rows)

        try:
            futures = [pool.submit(_write_shard, folder, inputs, piece, layout, count) for piece in pieces]
            made = [future.result() for future in futures]
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)
    for split in sizes:
        sync_folder(folder / split)
    return {split: _split(split, pieces, made) for split in sizes}


def _pieces(sizes: Mapping[str, int], first_row: int, layout: Layout) -> Iterator[Piece]:
    for split, rows in sizes.items():
        for place, start in enumerate(range(0, rows, layout.shard_rows)):
            path = f"{split}/part-{place:05d}.parquet"
            yield Piece(split, path, first_row + start, min(layout.shard_rows, rows - start))
        first_row += rows


def _write_shard(
    folder: Path, inputs: Inputs, piece: Piece, layout: Layout, count: Callable[[int], None]
) -> tuple[Shard, int]:
    """(the shard as the manifest has it, its positive labels)."""
    path = folder / piece.path
    row_groups, positives = [], 0
    with path.open("wb") as file, open_writer(file, inputs) as writer:
        for start in range(0, piece.rows, layout.group_rows):
            rows = min(layout.group_rows, piece.rows - start)
            table = inputs.rows(piece.first_row + start, rows)
            writer.write_table(table, row_group_size=rows)
            row_groups.append(rows)
            positives += int(np.count_nonzero(table.column(LABEL).to_numpy()))
            count(rows)
        writer.close()
        file.flush()
        os.fsync(file.fileno())
    return Shard(piece.path, piece.rows, path.stat().st_size, checksum(path), row_groups), positives


def open_writer(file: Any, inputs: Inputs) -> pq.ParquetWriter:
    """Arrow's own writer: the one of dlrm_app.preprocess stands above this layer, and here drawing takes longer."""
    ids = [feature.name + (".list.element" if feature.is_multi_hot else "") for feature in inputs.features]
    return pq.ParquetWriter(
        file,
        inputs.schema,
        compression="none",
        use_dictionary=[LABEL, *ids],
        write_statistics=False,
        write_page_checksum=True,
        store_schema=False,
    )


def _split(split: str, pieces: list[Piece], made: list[tuple[Shard, int]]) -> Split:
    own = [result for piece, result in zip(pieces, made, strict=True) if piece.split == split]
    shards = [shard for shard, _ in own]
    return Split(
        rows=sum(shard.rows for shard in shards),
        positives=sum(positives for _, positives in own),
        rejects=0,
        shards=shards,
    )
