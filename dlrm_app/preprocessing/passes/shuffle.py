"""Shuffles rows by a seed, and writes shards.

Every row has a random key, a hash of the seed and of the row's place in the input. To shuffle rows is to sort
them by their keys. So a full shuffle is an external sort: the rows of each unit are sorted and written to disk, then
every shard gathers the rows of one range of keys from all units.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import array_of, numbers_of
from dlrm_app.dataset.shard_writer import ShardWriter
from dlrm_app.dataset.splits import Shard
from dlrm_app.journal import Finish, Journal, R, WorkFiles
from dlrm_app.kernels.compiled import njit
from dlrm_app.kernels.hashing import GOLDEN, mix
from dlrm_app.preprocessing.work.executor import NumberedItem

KEY = "__order"


def row_keys(seed: int, source: int, unit: int, num_rows: int, first: int = 0) -> NDArray[np.uint64]:
    """The random keys of a unit's rows from number ``first`` on. They are distinct in up to 4,096 sources."""
    return _row_keys(np.uint64(seed), np.uint64(source), np.uint64(unit), first, num_rows)


@njit(nogil=True, cache=True)
def _row_keys(seed, source, unit, first, num_rows):  # type: ignore[no-untyped-def]  # compiled
    # 12 bits of source, 24 of unit and 28 of row give each row a number of its own, and mix is one-to-one
    slot = (source << np.uint64(52)) | (unit << np.uint64(28))
    salt = mix(seed ^ GOLDEN)
    keys = np.empty(num_rows, np.uint64)
    for row in range(num_rows):
        keys[row] = mix(salt ^ (slot | np.uint64(first + row)))
    return keys


def write_run(path: Path, table: pa.Table, keys: NDArray[np.uint64]) -> None:
    """Writes rows in the order of their keys, with the keys, so that ``Gather`` can read ranges of keys."""
    order = np.argsort(keys)
    run = table.take(array_of(order)).append_column(KEY, array_of(keys[order])).combine_chunks()
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, run.schema) as writer:
        writer.write_table(run)


def key_ranges(num_parts: int) -> list[tuple[int, int]]:
    """(first, last) key of each of ``num_parts`` shards."""
    bounds = [part * (1 << 64) // num_parts for part in range(num_parts + 1)]
    return [(start, stop - 1) for start, stop in pairwise(bounds)]


@dataclass(frozen=True)
class Gather:
    """Makes one of ``num_parts`` shards from the rows of all ``runs`` in its range of keys.

    The path of the shard is relative to the journal's folder.
    """

    title: ClassVar[str] = "gathering"
    reads: ClassVar[tuple[str, ...]] = ("encode/*.run",)
    runs: tuple[Path, ...]
    num_parts: int
    row_group_rows: int
    journal: Journal[Shard]

    def __call__(self, item: NumberedItem) -> Finish[Shard]:
        first, last = key_ranges(self.num_parts)[item.number]
        rows = pa.concat_tables(_rows_between(self.runs, first, last)).combine_chunks()
        order = np.argsort(numbers_of(rows.column(KEY)))
        rows = rows.drop_columns([KEY]).take(array_of(order))
        unit = self.journal.begin(item.name)
        with open_shard(unit, ".train.parquet", self.row_group_rows, rows.schema) as writer:
            writer.write_table(rows)
            shard = writer.finish()
        return unit.finish(shard)


def _rows_between(runs: Sequence[Path], first: int, last: int) -> list[pa.Table]:
    tables = []
    for path in runs:
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
            keys = numbers_of(table.column(KEY))
            low = np.searchsorted(keys, np.uint64(first))
            high = np.searchsorted(keys, np.uint64(last), "right")
            # a copy, so that the pages of the file can be freed
            tables.append(table.slice(low, high - low).take(array_of(np.arange(high - low))))
    return tables


@contextmanager
def open_shard(
    unit: WorkFiles[R], suffix: str, row_group_rows: int, schema: pa.Schema
) -> Iterator[ShardWriter]:
    """Opens a shard among the files of ``unit``; call ``finish`` in the block."""
    with unit.write(suffix) as temporary, temporary.open("wb") as file:
        yield ShardWriter(file, row_group_rows, schema, unit.path(suffix).name)
