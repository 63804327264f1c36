"""The pass before encoding: counts values for vocabularies, and measures the moments of dense columns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.dictionary import Indexer, JaggedColumns
from dlrm_app.dataset.manifest import DenseColumn
from dlrm_app.journal import Finish, Journal
from dlrm_app.logs.arrow_rows import ArrowCursor, open_cursor
from dlrm_app.logs.parser import Cursor
from dlrm_app.logs.sources.feeds import InputUnit
from dlrm_app.logs.sources.units import UnitExtent
from dlrm_app.logs.spec import Spec
from dlrm_app.logs.strings import MISSING_KEY
from dlrm_app.preprocessing.passes.counts import KeyCounts, gather_texts, occurrences, write_counts
from dlrm_app.preprocessing.passes.plan import InputPlan

_MEASURED, _COUNTED, _MOST_VALUES = 1 << 14, 1 << 16, 1 << 22
"""Rows to measure at a time, which affects how moments are rounded; rows to count at a time, among which many values
repeat; and the most values to count at a time, because more take longer than they save.
"""


@dataclass(frozen=True)
class Moments:
    """The number of values of a column, their mean, and the sum of squared distances from it."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def joined(self, other: "Moments") -> "Moments":
        """The moments of both sets of values together (Chan, Golub, LeVeque 1983)."""
        count = self.count + other.count
        if count == 0:
            return self
        distance = other.mean - self.mean
        mean = self.mean + distance * other.count / count
        squares = self.squares + other.squares + distance * distance * self.count * other.count / count
        return Moments(count, mean, squares)

    @property
    def deviation(self) -> float:
        """The standard deviation; 1 for a constant column, which is then only shifted."""
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
    """The record of a studied unit.

    ``moments``: those of each dense column.
    ``entries``: the number of keys of each sparse column in the unit's counts.
    """

    extent: UnitExtent
    moments: tuple[Moments, ...]
    entries: tuple[int, ...]


@dataclass(frozen=True)
class ValueStudy:
    """Counts the values and measures the dense columns of a unit's studied lines.

    The counts go to ``<unit>.counts`` in the journal's folder, the moments into the record. With ``sees_others``,
    values of the other lines are counted too, each zero times.
    """

    title: ClassVar[str] = "studying values"
    reads: ClassVar[tuple[str, ...]] = ()
    plan: InputPlan
    wants_counts: bool
    wants_moments: bool
    sees_others: bool
    journal: Journal[StudiedUnit]

    def __call__(self, unit: InputUnit) -> Finish[StudiedUnit]:
        spec = self.plan.spec
        counts = [KeyCounts() for _ in spec.sparse] if self.wants_counts else []
        moments = [Moments()] * len(spec.dense)
        indexer = Indexer(np.full(len(counts), MISSING_KEY))
        wants_texts = self.wants_counts and any(column.kind == "string" for column in spec.sparse)
        cursor = open_cursor(unit, self.plan.file_specs[unit.source], keeps_spans=wants_texts)
        num_columns = len(spec.dense) + len(spec.sparse)
        counted = min(_COUNTED, max(_MOST_VALUES // num_columns, 1))
        for split, raw, _ in self.plan.rows(unit, cursor, _MEASURED if self.wants_moments else counted):
            is_studied = split in self.plan.studied
            if self.wants_counts and (is_studied or self.sees_others):
                _count(counts, list(raw.sparse_keys(spec)), indexer, weight=int(is_studied))
            if self.wants_moments and is_studied:
                moments = [m.joined(moments_of(values)) for m, values in zip(moments, raw.dense, strict=True)]
        extent = unit.finish()
        files = self.journal.begin(unit.name)
        features = [count.sorted() for count in counts]
        if self.wants_counts:
            texts = _texts(spec, cursor, [feature.spans for feature in features]) if wants_texts else None
            with files.write(".counts") as temporary:
                write_counts(temporary, features, texts)
        entries = tuple(len(feature.keys) for feature in features)
        return files.finish(StudiedUnit(extent, tuple(moments), entries))


def _count(
    counts: Sequence[KeyCounts],
    features: Sequence[tuple[NDArray[np.uint64], NDArray[np.int64]]],
    indexer: Indexer[np.uint64],
    weight: int,
) -> None:
    """Adds (keys, spans) of ``features`` to their ``counts``, ``weight`` times each.

    Keys that repeat are joined first.
    """
    indexed = indexer.index(JaggedColumns.joined([keys for keys, _ in features]))
    for number, (count, (keys, spans)) in enumerate(zip(counts, features, strict=True)):
        if len(distinct := indexed.distinct[number]):
            firsts, times = occurrences(indexed.codes[number], len(distinct))
            count.add(distinct, weight * times, spans[firsts] if len(spans) else spans)
        elif len(spans):
            count.add(keys.copy(), np.full(len(keys), weight), spans.copy())
        else:
            distinct, times = np.unique(keys, return_counts=True)
            count.add(distinct, weight * times)


def _texts(spec: Spec, cursor: Cursor | ArrowCursor, spans: Sequence[NDArray[np.int64]]) -> list[pa.Array]:
    """The texts of the keys of string columns.

    Texts of other columns are empty, because their keys are their values.
    """
    quote, text = ord(spec.quote) if spec.quote else -1, cursor.texts()
    return [
        gather_texts(text, part if column.kind == "string" else part * 0, quote, bool(column.whole))
        for column, part in zip(spec.sparse, spans, strict=True)
    ]


def standardized(dense: Sequence[DenseColumn], units: Sequence[StudiedUnit]) -> list[DenseColumn]:
    """``dense`` with the moments of columns that lack them.

    Moments are joined in the order of units, so that rounding is the same in every run.
    """
    totals = [Moments()] * len(dense)
    for unit in units:
        totals = [total.joined(other) for total, other in zip(totals, unit.moments, strict=True)]
    return [
        replace(column, transform={**column.transform, "mean": total.mean, "deviation": total.deviation})
        if column.transform == {"kind": "standardize"}
        else column
        for column, total in zip(dense, totals, strict=True)
    ]
