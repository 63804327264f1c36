"""Row orders by seed. Every row has a random key, a hash of the seed and of the row's place in the input; shuffled
rows are rows in the order of their keys. So a full shuffle is an external sort: each unit's rows are put in order on
disk, then every shard gathers the rows of one range of keys from all units.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import array_of, numbers_of
from dlrm_app.dataset.manifest import Shard
from dlrm_app.kernels.compiled import njit
from dlrm_app.preprocess.passes.plan import ShardLayout
from dlrm_app.preprocess.passes.shards import open_shard
from dlrm_app.preprocess.units.executor import Finish
from dlrm_app.preprocess.units.hashing import mix
from dlrm_app.preprocess.units.journal import Journal

KEY = "__order"


def row_keys(seed: int, source: int, unit: int, num_rows: int, first: int = 0) -> NDArray[np.uint64]:
    """The random keys of a unit's rows from number ``first`` on; no two rows of a dataset have the same."""
    return _row_keys(np.uint64(seed), np.uint64(source), np.uint64(unit), first, num_rows)


@njit(nogil=True, cache=True)
def _row_keys(seed, source, unit, first, num_rows):  # type: ignore[no-untyped-def]  # compiled
    # 12 bits of source, 24 of unit and 28 of row make each row's place a number of its own, and mix is one-to-one
    slot = (source << np.uint64(52)) | (unit << np.uint64(28))
    salt = mix(seed ^ np.uint64(0x9E3779B97F4A7C15))
    keys = np.empty(num_rows, np.uint64)
    for row in range(num_rows):
        keys[row] = mix(salt ^ (slot | np.uint64(first + row)))
    return keys


def write_run(path: Path, table: pa.Table, keys: NDArray[np.uint64]) -> None:
    """Writes rows into ``path`` in the order of their keys, keys included, for ``Gather`` to read by ranges."""
    order = np.argsort(keys)
    run = table.take(array_of(order)).append_column(KEY, array_of(keys[order])).combine_chunks()
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, run.schema) as writer:
        writer.write_table(run)


def key_ranges(num_parts: int) -> list[tuple[int, int]]:
    """[start, stop) of the keys of each of ``num_parts`` shards."""
    bounds = [part * (1 << 64) // num_parts for part in range(num_parts + 1)]
    return list(pairwise(bounds))


@dataclass(frozen=True)
class GatheredShard:
    """A shard of shuffled rows; its path is relative to the journal's folder."""

    shard: Shard


@dataclass(frozen=True)
class Gather:
    """Makes shard ``part`` of ``num_parts`` out of the rows that all ``runs`` have in its range of keys."""

    title: ClassVar[str] = "gathering"
    runs: tuple[Path, ...]
    num_parts: int
    layout: ShardLayout
    journal: Journal[GatheredShard]

    def __call__(self, part: int) -> Finish[GatheredShard]:
        start, stop = key_ranges(self.num_parts)[part]
        rows = pa.concat_tables(_rows_between(self.runs, start, stop)).combine_chunks()
        order = np.argsort(numbers_of(rows.column(KEY)))
        rows = rows.drop_columns([KEY]).take(array_of(order))
        unit = self.journal.unit(0, part)
        with open_shard(unit, ".train.parquet", self.layout, rows.schema) as writer:
            writer.write_table(rows)
            shard = writer.finish()
        return unit.finish(GatheredShard(shard))


def _rows_between(runs: Sequence[Path], start: int, stop: int) -> list[pa.Table]:
    tables = []
    for path in runs:
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
            if not len(table):
                continue
            keys = numbers_of(table.column(KEY))
            low = np.searchsorted(keys, np.uint64(start))
            high = len(keys) if stop == 1 << 64 else np.searchsorted(keys, np.uint64(stop))
            # copied, so that the file's pages need not stay
            tables.append(table.slice(low, high - low).take(array_of(np.arange(high - low))))
    return tables
