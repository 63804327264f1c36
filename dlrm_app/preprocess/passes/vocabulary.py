"""The passes over the training split before it can be encoded: vocabularies, and moments of dense columns.

``Study`` counts the values of each unit into a file, in buckets by hash. ``AddUp`` adds them up feature by feature, as
many buckets at a time as memory allows. Ids go by falling count, equal counts by key.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import array_of
from dlrm_app.dataset.manifest import DenseColumn, SparseColumn
from dlrm_app.errors import ConfigError
from dlrm_app.files import checksum, written_whole
from dlrm_app.preprocess.encode.sparse import FIRST_ID, MISSING_ID, RARE_ID, TABLE_BYTES, TABLE_FILL
from dlrm_app.preprocess.passes.counting import (
    NUM_BUCKETS,
    Counts,
    gather_texts,
    read_counts,
    read_texts,
    write_counts,
)
from dlrm_app.preprocess.passes.plan import Cuts, Plan, segments
from dlrm_app.preprocess.read.arrow_rows import ArrowCursor, open_cursor
from dlrm_app.preprocess.read.parser import Cursor
from dlrm_app.preprocess.read.spec import Spec
from dlrm_app.preprocess.units.executor import Finish
from dlrm_app.preprocess.units.journal import Journal
from dlrm_app.preprocess.units.parquet_units import ParquetUnit
from dlrm_app.preprocess.units.unit_text import TextRange, UnitText
from dlrm_app.text import memory_text

_ROWS = 1 << 14
_BYTES_PER_COUNT = 64
"""Memory that adding up takes for one key of one unit, sorting included."""
_PART_BYTES = 1 << 27
"""Memory that adding up one part of a feature may take."""
BYTES_PER_KEPT = 48
"""Memory that one value of a feature takes while the feature's vocabulary is put in order."""
BYTES_PER_VALUE = math.ceil(TABLE_BYTES / TABLE_FILL)
"""Memory that one value takes while rows are encoded."""


@dataclass(frozen=True)
class Moments:
    """Number of values of a column, their mean, and the sum of squared distances from it."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def joined(self, other: "Moments") -> "Moments":
        """The moments of both sets of values together (Chan, Golub, LeVeque 1983)."""
        count = self.count + other.count
        if count == 0:
            return self
        apart = other.mean - self.mean
        mean = self.mean + apart * other.count / count
        squares = self.squares + other.squares + apart * apart * self.count * other.count / count
        return Moments(count, mean, squares)

    @property
    def deviation(self) -> float:
        """The standard deviation; 1 for a column that does not vary, which is then only shifted."""
        return math.sqrt(self.squares / self.count) if self.squares > 0 else 1.0


def moments_of(values: NDArray[np.float64]) -> Moments:
    """The moments of the values that are not missing."""
    present = values[~np.isnan(values)]
    if not len(present):
        return Moments()
    mean = float(present.mean())
    return Moments(len(present), mean, float(((present - mean) ** 2).sum()))


@dataclass(frozen=True)
class StudiedUnit:
    """``moments`` of each dense column; ``entries``: how many keys of each sparse one are in the unit's counts."""

    text: TextRange
    moments: tuple[Moments, ...]
    entries: tuple[int, ...]


@dataclass(frozen=True)
class Study:
    """Counts the values and measures the dense columns of a unit's studied lines.

    The counts go to ``<unit>.counts`` in the journal's folder, the moments into its record.
    """

    title: ClassVar[str] = "studying values"
    plan: Plan
    cuts: Cuts | None
    wants_counts: bool
    journal: Journal[StudiedUnit]

    def __call__(self, text: UnitText | ParquetUnit) -> Finish[StudiedUnit]:
        spec = self.plan.spec
        counts = [Counts() for _ in spec.sparse] if self.wants_counts else []
        moments = [Moments()] * len(spec.dense)
        wants_texts = self.wants_counts and any(column.kind == "string" for column in spec.sparse)
        cursor = open_cursor(text, self.plan.file_specs[text.source], keeps_spans=wants_texts)
        for segment in segments(self.plan, self.cuts, text):
            for raw in cursor.rows(_ROWS, segment.stop):
                if segment.split in self.plan.studied:
                    for count, (keys, spans) in zip(counts, raw.sparse_keys(spec), strict=False):
                        count.add(keys, spans)
                    moments = [
                        m.joined(moments_of(values)) for m, values in zip(moments, raw.dense, strict=True)
                    ]
        text_range = text.finish()
        unit = self.journal.unit(text.source, text.unit)
        features = [count.sorted() for count in counts]
        if self.wants_counts:
            texts = _texts(spec, cursor, [spans for _, spans in features]) if wants_texts else None
            with unit.write(".counts") as temporary:
                write_counts(temporary, [columns for columns, _ in features], texts)
        entries = tuple(len(columns["key"]) for columns, _ in features)
        return unit.finish(StudiedUnit(text_range, tuple(moments), entries))


def _texts(spec: Spec, cursor: Cursor | ArrowCursor, spans: Sequence[NDArray[np.int64]]) -> list[pa.Array]:
    """The text behind each key of string columns; other columns' keys are their values, and their texts empty."""
    quote, text = ord(spec.quote) if spec.quote else -1, cursor.texts()
    return [
        gather_texts(text, part if column.kind == "string" else part * 0, quote)
        for column, part in zip(spec.sparse, spans, strict=True)
    ]


def standardized(dense: Sequence[DenseColumn], units: Sequence[StudiedUnit]) -> list[DenseColumn]:
    """``dense`` with the moments of columns that lack them, joined in the units' order so that rounding is the same in every run."""
    totals = [Moments()] * len(dense)
    for unit in units:
        totals = [total.joined(other) for total, other in zip(totals, unit.moments, strict=True)]
    return [
        replace(column, transform={**column.transform, "mean": total.mean, "deviation": total.deviation})
        if column.transform == {"kind": "standardize"}
        else column
        for column, total in zip(dense, totals, strict=True)
    ]


@dataclass(frozen=True)
class AddUp:
    """Makes the vocabulary of one group of features from all units' counts: vocab/<its first>.parquet, landed as its unit."""

    title: ClassVar[str] = "adding up"
    plan: Plan
    counted: Journal[StudiedUnit]
    units: tuple[StudiedUnit, ...]
    min_count: tuple[int, ...]
    top_k: tuple[int | None, ...]
    groups: tuple[tuple[int, ...], ...]
    memory_bytes: int
    journal: Journal[SparseColumn]

    def __call__(self, number: int) -> Finish[SparseColumn]:
        features = self.groups[number]
        column = self.plan.spec.sparse[features[0]]
        files = [self.counted.path(u.text.source, u.text.unit, ".counts") for u in self.units]
        keys, counts, distinct = self._add(features, files)
        order = np.lexsort((keys, -counts))[: self.top_k[features[0]]]
        keys, counts = keys[order], counts[order]
        file = f"vocab/{column.name}.parquet"
        path = self.plan.output / file
        path.parent.mkdir(exist_ok=True)
        columns = {
            "value": _values(column.kind or "", keys, features, files),
            "id": array_of(np.arange(FIRST_ID, FIRST_ID + len(keys), dtype=np.int32)),
            "count": array_of(counts),
        }
        with written_whole(path) as temporary:
            pq.write_table(pa.table(columns), temporary, compression="zstd")
        encoding = {
            "kind": "vocab",
            "file": file,
            "checksum": checksum(path),
            "missing_id": MISSING_ID,
            "rare_id": RARE_ID,
            "raw": column.kind,
        }
        rare = distinct - len(keys)
        made = SparseColumn(
            column.name,
            FIRST_ID + len(keys),
            encoding,
            multi_hot=column.separator is not None,
            distinct=distinct,
            collisions=rare if rare > 1 else 0,
        )
        return self.journal.unit(0, number).finish(made)

    def _add(
        self, features: Sequence[int], files: Sequence[Path]
    ) -> tuple[NDArray[np.uint64], NDArray[np.int64], int]:
        """(keys seen often enough, their counts, how many distinct keys there are)."""
        total = sum(unit.entries[feature] for unit in self.units for feature in features)
        num_parts = min(max(-(-total * _BYTES_PER_COUNT // _PART_BYTES), 1), NUM_BUCKETS)
        distinct, all_keys, all_counts = 0, [], []
        for first, last in pairwise(part * NUM_BUCKETS // num_parts for part in range(num_parts + 1)):
            parts = [read_counts(file, feature, first, last) for file in files for feature in features]
            keys, places = np.unique(np.concatenate([keys for keys, _ in parts]), return_inverse=True)
            counts = np.zeros(len(keys), np.int64)
            np.add.at(counts, places, np.concatenate([counts for _, counts in parts]))
            distinct += len(keys)
            often = counts >= self.min_count[features[0]]
            all_keys.append(keys[often])
            all_counts.append(counts[often])
            refuse_if_too_large(sum(map(len, all_keys)), BYTES_PER_KEPT, self.memory_bytes)
        return np.concatenate(all_keys), np.concatenate(all_counts), distinct


def _values(kind: str, keys: NDArray[np.uint64], features: Sequence[int], files: Sequence[Path]) -> pa.Array:
    """The raw values behind ``keys``: uint64 for hex, int64 for integer, strings."""
    if kind == "hex":
        return array_of(keys)
    if kind == "integer":
        return array_of(keys.view(np.int64))
    order = np.argsort(keys)
    places, texts = np.full(len(keys), -1, np.int64), [pa.array([], pa.string())]
    num_found = 0
    for file, feature in product(files, features):
        unit_keys, unit_texts = read_texts(file, feature)
        spots = np.searchsorted(keys, unit_keys, sorter=order)
        candidates = order[spots[spots < len(keys)]]
        at = np.flatnonzero(spots < len(keys))
        is_new = (keys[candidates] == unit_keys[at]) & (places[candidates] < 0)
        places[candidates[is_new]] = np.arange(num_found, num_found + is_new.sum())
        num_found += int(is_new.sum())
        texts.append(unit_texts.take(array_of(at[is_new])))
    return pa.concat_arrays(texts).take(array_of(places))


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
