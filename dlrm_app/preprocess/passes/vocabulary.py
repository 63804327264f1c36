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
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import array_of
from dlrm_app.dataset.lineage import Growth
from dlrm_app.dataset.manifest import DenseColumn, SparseColumn
from dlrm_app.errors import ConfigError
from dlrm_app.files import checksum
from dlrm_app.preprocess.encode.sparse import FIRST_ID, MISSING_ID, RARE_ID, TABLE_BYTES, TABLE_FILL
from dlrm_app.preprocess.passes.counting import (
    NUM_BUCKETS,
    Counts,
    gather_texts,
    in_buckets,
    read_counts,
    read_texts,
    write_counts,
)
from dlrm_app.preprocess.passes.growth import Grown, Rule, Values, Waiting, grow
from dlrm_app.preprocess.passes.parent import Parent, write_vocabulary, write_waiting
from dlrm_app.preprocess.passes.plan import Cuts, Plan, segments
from dlrm_app.preprocess.passes.unit_counts import read_known
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
class AddedUp:
    """The column whose vocabulary was made and, where it grows, what this day did to it."""

    column: SparseColumn
    growth: Growth | None = None


@dataclass(frozen=True)
class AddUp:
    """Makes the vocabulary of one group of features from all units' counts: vocab/<its first>.parquet, landed as its unit.

    files: the units' counts, with so many ``entries`` of each feature; ``rules`` by feature. Where it ``grows``, also
    waiting/<its first>.parquet; ``parent`` is None on the first day.
    """

    title: ClassVar[str] = "adding up"
    plan: Plan
    files: tuple[Path, ...]
    entries: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    rules: tuple[Rule, ...]
    grows: bool
    parent: Parent | None
    memory_bytes: int
    journal: Journal[AddedUp]

    def __call__(self, number: int) -> Finish[AddedUp]:
        features = self.groups[number]
        column, rule = self.plan.spec.sparse[features[0]], self.rules[features[0]]
        old, old_raw = self.parent.read(column.name) if self.parent else (Values.none(), None)
        today, is_seen = self._count_known(features, len(old))
        waiting, distinct = self._add(features, rule, len(old))
        grown = grow(old, today, is_seen, waiting, rule)
        raw = _values(column.kind or "", grown.values.keys[grown.new], features, self.files)
        places = np.full(len(grown.values), -1, np.int64)
        places[grown.new] = np.arange(len(grown.new))
        if old_raw is not None:
            stays = grown.is_old[: len(old)]
            places[: len(old)][stays] = (np.cumsum(old.is_living) - 1 + len(raw))[stays]
            raw = pa.concat_arrays([raw, old_raw])
        file = f"vocab/{column.name}.parquet"
        write_vocabulary(self.plan.output / file, grown, raw, places, days=self.grows)
        encoding = {
            "kind": "vocab",
            "file": file,
            "checksum": checksum(self.plan.output / file),
            "missing_id": MISSING_ID,
            "rare_id": RARE_ID,
            "raw": column.kind,
        }
        rare = distinct - len(grown.new)
        made = SparseColumn(
            column.name,
            FIRST_ID + len(grown.values),
            encoding,
            multi_hot=column.separator is not None,
            distinct=distinct + int(np.count_nonzero(today)),
            collisions=rare if rare > 1 else 0,
        )
        unseen = int(waiting.today.sum())
        growth = (
            self._write_growth(grown, features, int(today.sum()) + unseen, unseen) if self.grows else None
        )
        return self.journal.unit(0, number).finish(AddedUp(made, growth))

    def _count_known(
        self, features: Sequence[int], num_values: int
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """(the rows of studied splits that have each of the parent's values, whether any row has)."""
        counts, is_seen = np.zeros(num_values, np.int64), np.zeros(num_values, np.bool_)
        for file, feature in product(self.files if self.parent else (), features):
            ids, numbers = read_known(file, feature, len(self.plan.spec.sparse))
            counts[ids - FIRST_ID] += numbers
            is_seen[ids - FIRST_ID] = True
        return counts, is_seen

    def _add(self, features: Sequence[int], rule: Rule, num_values: int) -> tuple[Waiting, int]:
        """(the values that the parent lacks, how many distinct ones of them this day has), a few buckets at a time.

        Where nothing grows those that are not seen often enough are left out.
        """
        before = (
            self.parent.waiting(self.plan.spec.sparse[features[0]].name) if self.parent else Waiting.none()
        )
        _, buckets = in_buckets(before.keys)
        total = len(before.keys) + sum(self.entries[feature] for feature in features)
        num_parts = min(max(-(-total * _BYTES_PER_COUNT // _PART_BYTES), 1), NUM_BUCKETS)
        distinct, all_parts = 0, [Waiting.none()]
        for first, last in pairwise(part * NUM_BUCKETS // num_parts for part in range(num_parts + 1)):
            parts = [read_counts(file, feature, first, last) for file in self.files for feature in features]
            start, stop = np.searchsorted(buckets, [first, last])
            part = _joined(before.take(slice(start, stop)), parts, rule.day)
            distinct += int(np.count_nonzero(part.today))
            all_parts.append(part if self.grows else part.take(part.count >= rule.min_count))
            kept = num_values + sum(len(part.keys) for part in all_parts)
            refuse_if_too_large(kept, BYTES_PER_KEPT, self.memory_bytes)
        return Waiting.joined(all_parts), distinct

    def _write_growth(self, grown: Grown, features: Sequence[int], lookups: int, unseen: int) -> Growth:
        names = [self.plan.spec.sparse[feature].name for feature in features]
        file = f"waiting/{names[0]}.parquet" if len(grown.waiting.keys) else ""
        if file:
            write_waiting(self.plan.output / file, grown.waiting)
        return Growth(
            names,
            values=int(np.count_nonzero(grown.values.is_living)),
            new=len(grown.new),
            given_again=grown.num_given_again,
            expired=grown.num_expired,
            waiting=len(grown.waiting.keys),
            lookups=lookups,
            unseen=unseen,
            waiting_file=file,
            waiting_checksum=checksum(self.plan.output / file) if file else "",
        )


def _joined(
    before: Waiting, parts: Sequence[tuple[NDArray[np.uint64], NDArray[np.int64]]], day: int
) -> Waiting:
    """The values that wait ``before`` and those of ``parts`` of the day, (keys, counts), in the order of keys.

    A value of none of the day's studied rows that does not wait either is left out.
    """
    num_before = len(before.keys)
    keys, places = np.unique(np.concatenate([before.keys, *(keys for keys, _ in parts)]), return_inverse=True)
    today, count = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
    np.add.at(today, places[num_before:], np.concatenate([counts for _, counts in parts]))
    count[places[:num_before]] = before.count
    last_seen = np.full(len(keys), day, np.int32)
    last_seen[places[:num_before]] = before.last_seen
    last_seen[places[num_before:]] = day
    joined = Waiting(keys, today, count + today, last_seen)
    return joined.take(joined.count > 0)


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
