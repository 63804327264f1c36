"""Vocabularies: the training split's values and their ids, counted unit by unit and added up on disk.

``study`` leaves the counts of each unit in a file, in buckets by hash. Here they are added up feature by feature, as
many buckets at a time as memory allows. Ids go by falling count, equal counts by key.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import array_of
from dlrm_app.errors import ConfigError
from dlrm_app.files import written_whole
from dlrm_app.preprocess.encode.sparse import FIRST_ID, TABLE_BYTES, TABLE_FILL
from dlrm_app.preprocess.passes.count_file import CountFile, Strings
from dlrm_app.preprocess.passes.counting import NUM_BUCKETS
from dlrm_app.preprocess.passes.study import StudiedUnit, count_file
from dlrm_app.preprocess.units.executor import Finish
from dlrm_app.preprocess.units.journal import Journal
from dlrm_app.preprocess.units.work_plan import Plan
from dlrm_app.text import memory_text

_BYTES_PER_COUNT = 64
"""Memory that adding up takes for one key of one unit, sorting included."""
_PART_BYTES = 1 << 27
"""Memory that adding up one part of a feature may take."""
BYTES_PER_KEPT = 48
"""Memory that one value of a feature takes while the feature's vocabulary is put in order."""
BYTES_PER_VALUE = math.ceil(TABLE_BYTES / TABLE_FILL)
"""Memory that one value takes while rows are encoded."""


@dataclass(frozen=True)
class VocabularySize:
    """How many distinct values a feature has, and how many of them were kept, each with an id."""

    feature: str
    distinct: int
    kept: int


@dataclass(frozen=True)
class AddUp:
    """Makes the vocabulary of one feature from all units' counts: vocab/<feature>.parquet, landed as unit ``feature``."""

    title: ClassVar[str] = "adding up"
    plan: Plan
    counted: Journal[StudiedUnit]
    units: tuple[StudiedUnit, ...]
    min_count: int
    top_k: tuple[int | None, ...]
    memory_bytes: int
    journal: Journal[VocabularySize]

    def __call__(self, feature: int) -> Finish[VocabularySize]:
        column = self.plan.spec.sparse[feature]
        files = [count_file(self.counted, unit) for unit in self.units]
        total = sum(unit.entries[feature] for unit in self.units)
        keys, counts, distinct = self._add(feature, files, total)
        order = np.lexsort((keys, -counts))[: self.top_k[feature]]
        keys, counts = keys[order], counts[order]
        path = self.plan.output / vocabulary_file(column.name)
        path.parent.mkdir(exist_ok=True)
        table = pa.table(
            {
                "value": _values(column.kind or "", keys, feature, files),
                "id": array_of(np.arange(FIRST_ID, FIRST_ID + len(keys), dtype=np.int32)),
                "count": array_of(counts),
            }
        )
        with written_whole(path) as temporary:
            pq.write_table(table, temporary, compression="zstd")
        return self.journal.unit(0, feature).finish(VocabularySize(column.name, distinct, len(keys)))

    def _add(
        self, feature: int, files: Sequence[CountFile], total: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.int64], int]:
        """(keys seen often enough, their counts, how many distinct keys there are)."""
        num_parts = min(max(-(-total * _BYTES_PER_COUNT // _PART_BYTES), 1), NUM_BUCKETS)
        bounds = [part * NUM_BUCKETS // num_parts for part in range(num_parts + 1)]
        distinct, kept = 0, []
        for first, last in pairwise(bounds):
            parts = [file.counts(feature, first, last) for file in files]
            keys, counts = _summed(
                np.concatenate([k for k, _ in parts]), np.concatenate([c for _, c in parts])
            )
            distinct += len(keys)
            often = counts >= self.min_count
            kept.append((keys[often], counts[often]))
            refuse_if_too_large(sum(len(keys) for keys, _ in kept), BYTES_PER_KEPT, self.memory_bytes)
        return (
            np.concatenate([keys for keys, _ in kept]),
            np.concatenate([counts for _, counts in kept]),
            distinct,
        )


def _summed(
    keys: NDArray[np.uint64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    if not len(keys):
        return keys, counts
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[starts], np.add.reduceat(counts, starts)


def _values(kind: str, keys: NDArray[np.uint64], feature: int, files: Sequence[CountFile]) -> pa.Array:
    """The raw values behind ``keys``: uint64 for hex, int64 for integer, strings."""
    if kind == "hex":
        return array_of(keys)
    if kind == "integer":
        return array_of(keys.view(np.int64))
    order = np.argsort(keys)
    values = np.empty(len(keys), object)  # one Python string per distinct value, not per row
    for file in files:
        unit_keys, strings = file.strings(feature)
        spots = np.searchsorted(keys, unit_keys, sorter=order)
        spots[spots == len(keys)] = 0
        for at in np.flatnonzero(keys[order[spots]] == unit_keys).tolist() if len(keys) else ():
            values[order[spots[at]]] = _string(strings, at)
    return pa.array(values, pa.string())


def _string(strings: Strings, at: int) -> str:
    return strings.bytes[strings.ends[at] : strings.ends[at + 1]].tobytes().decode("utf-8")


def vocabulary_file(name: str) -> str:
    """A feature's vocabulary, relative to the dataset folder."""
    return f"vocab/{name}.parquet"


def refuse_if_too_large(entries: int, bytes_per_entry: int, memory_bytes: int) -> None:
    """Raises ConfigError if ``entries`` values do not fit in ``memory_bytes``."""
    needed = entries * bytes_per_entry
    if needed > memory_bytes:
        raise ConfigError(
            [
                f"the vocabularies hold {entries:,} values or more, which take {memory_text(needed)} of memory, "
                f"more than memory_gib allows for them ({memory_text(memory_bytes)}): raise memory_gib, "
                "or encoding.min_count, or set encoding.top_k, or use encoding=hash"
            ]
        )
