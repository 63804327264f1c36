"""Compares a dataset with its manifest: its files, then each value of its row groups.

Checked of values: types, missing values, labels, ids within tables, finite dense values.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import Bags, ColumnError, numbers_of, read_column, read_ids, refuse_wrong
from dlrm_app.dataset.encoding_files import encoding_file_problems
from dlrm_app.dataset.manifest import Manifest, Shard
from dlrm_app.dataset.shard_files import row_group_difference
from dlrm_app.files import file_difference
from dlrm_app.loader.prefetch import map_in_order
from dlrm_app.preprocess.read.parser import REJECTS
from dlrm_app.progress import work_bar
from dlrm_app.text import count


def check_files(manifest: Manifest, num_threads: int) -> tuple[list[str], set[str]]:
    """(every problem, the paths of the shards that are whole)."""
    folder = manifest.folder
    shards = manifest.shards
    problems: list[str] = []
    whole = set()
    with work_bar(desc="checksums", total=sum(s.bytes for s in shards), unit="B", unit_scale=True) as bar:
        results = map_in_order(
            lambda shard: _shard_problem(folder / shard.path, shard), shards, num_threads, num_threads
        )
        for shard, problem in zip(shards, results, strict=True):
            bar.update(shard.bytes)
            if problem:
                problems.append(problem)
            else:
                whole.add(shard.path)
    problems += encoding_file_problems(manifest)
    return [*problems, *_reject_problems(manifest)], whole


def _shard_problem(path: Path, shard: Shard) -> str | None:
    """A fault in a shard's bytes or row groups; None if it is as it was written."""
    try:
        difference = file_difference(path, shard.bytes, shard.checksum)
        return difference or row_group_difference(pq.read_metadata(path), path, shard)
    except (OSError, pa.ArrowException) as error:
        return f"{path} cannot be read: {error}"


def _reject_problems(manifest: Manifest) -> list[str]:
    expected = sum(split.rejects for split in manifest.splits.values())
    path = manifest.folder / REJECTS
    num_lines = 0
    if path.is_file():
        with path.open("rb") as file:
            num_lines = sum(1 for _ in file)
    if num_lines == expected:
        return []
    return [f"{REJECTS} holds {count(num_lines, 'line')}, the manifest says that {expected:,} were left out"]


@dataclass(frozen=True)
class RowGroup:
    """Row group number ``index`` of ``shard``."""

    split: str
    shard: Shard
    index: int

    @property
    def rows(self) -> int:
        return self.shard.row_groups[self.index]


@dataclass
class Values:
    """The columns of a row group; one with a fault is left out.

    labels uint8 [R], dense float32 [R] each, ids int32 [R] each, or Bags of lists.
    """

    labels: NDArray[np.uint8] | None = None
    dense: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    ids: dict[str, NDArray[np.int32] | Bags] = field(default_factory=dict)
    faults: list[ColumnError] = field(default_factory=list)

    @contextmanager
    def keep_fault(self) -> Iterator[None]:
        """A block that reads a column, left at its first fault."""
        try:
            yield
        except ColumnError as error:
            self.faults.append(error)


def read_row_group(manifest: Manifest, group: RowGroup) -> Values:
    """All columns of a row group."""
    values = Values()
    label = manifest.label if manifest.splits[group.split].positives is not None else None
    try:
        with pq.ParquetFile(manifest.folder / group.shard.path) as file:
            table = file.read_row_group(group.index, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        values.faults.append(ColumnError("all", f"row group {group.index} cannot be decoded: {error}"))
        return values
    if label is not None:
        with values.keep_fault():
            clicks = numbers_of(read_column(table, label, pa.uint8()))
            refuse_wrong(clicks[clicks > 1], label, "labels are neither 0 nor 1")
            values.labels = clicks
    for dense in manifest.dense:
        with values.keep_fault():
            numbers = numbers_of(read_column(table, dense.name, pa.float32()))
            refuse_wrong(numbers[~np.isfinite(numbers)], dense.name, "values are not finite")
            values.dense[dense.name] = numbers
    for sparse in manifest.sparse:
        with values.keep_fault():
            values.ids[sparse.name] = read_ids(table, sparse)
    return values
