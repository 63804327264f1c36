"""Rows of synthetic inputs → Parquet shards, several at a time, the same bytes with any number of threads."""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from tqdm import tqdm

from dlrm_app.dataset.arrow import numbers_of
from dlrm_app.dataset.manifest import Shard, Split
from dlrm_app.files import checksum, sync_folder
from dlrm_app.loader.prefetch import map_in_order
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
    splits = {}
    with tqdm(total=sum(sizes.values()), unit=" rows", unit_scale=True, desc="writing") as bar:
        for name, rows in sizes.items():
            (folder / name).mkdir()
            shards, positives = [], 0
            for shard, clicks in _write_split(
                folder, name, inputs, range(first_row, first_row + rows), layout, threads
            ):
                shards.append(shard)
                positives += clicks
                bar.update(shard.rows)
            sync_folder(folder / name)
            splits[name] = Split(rows, positives, rejects=0, shards=shards)
            first_row += rows
    return splits


def _write_split(
    folder: Path, name: str, inputs: Inputs, rows: range, layout: Layout, threads: int | None
) -> Iterator[tuple[Shard, int]]:
    """(each shard of ``rows`` as the manifest has it, its positive labels)."""
    shards = [rows[start : start + layout.shard_rows] for start in range(0, len(rows), layout.shard_rows)]

    def write(index: int) -> tuple[Shard, int]:
        return _write_shard(
            folder, f"{name}/part-{index:05d}.parquet", inputs, shards[index], layout.group_rows
        )

    num_threads = threads or os.cpu_count() or 1
    return map_in_order(write, range(len(shards)), num_threads, num_threads)


def _write_shard(folder: Path, name: str, inputs: Inputs, rows: range, group_rows: int) -> tuple[Shard, int]:
    path = folder / name
    row_groups, positives = [], 0
    with path.open("wb") as file, open_writer(file, inputs) as writer:
        for start in range(rows.start, rows.stop, group_rows):
            table = inputs.rows(start, min(group_rows, rows.stop - start))
            writer.write_table(table, row_group_size=len(table))
            row_groups.append(len(table))
            positives += int(np.count_nonzero(numbers_of(table.column(LABEL))))
        writer.close()
        file.flush()
        os.fsync(file.fileno())
    return Shard(name, len(rows), path.stat().st_size, checksum(path), row_groups), positives


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
