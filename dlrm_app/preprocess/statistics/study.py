"""The pass that must see the training split before it can be encoded: counts of values, moments of dense columns."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlrm_app.preprocess.encode.encoder import list_slots
from dlrm_app.preprocess.job.executor import Finish
from dlrm_app.preprocess.job.journal import Journal, Unit
from dlrm_app.preprocess.job.passes import Cursor, segments, summary
from dlrm_app.preprocess.job.work_plan import Cuts, Plan
from dlrm_app.preprocess.read.parser import Parser, RawColumns
from dlrm_app.preprocess.read.spec import Spec
from dlrm_app.preprocess.read.units import UnitText
from dlrm_app.preprocess.statistics.count_file import gather_strings, write_counts
from dlrm_app.preprocess.statistics.counting import Counts

_ROWS = 1 << 14


@dataclass(frozen=True)
class Moments:
    """How many values a column has, their mean, and the sum of squared distances from it."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def joined(self, other: "Moments") -> "Moments":
        """Of both sets of values together (Chan, Golub, LeVeque 1983)."""
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
    """Of the values that are not missing."""
    present = values[~np.isnan(values)]
    if not len(present):
        return Moments()
    mean = float(present.mean())
    return Moments(len(present), mean, float(((present - mean) ** 2).sum()))


def total_moments(results: Iterable[Mapping[str, Any]], num_dense: int) -> list[Moments]:
    """Of all units, joined in their order, so that rounding is the same in every run."""
    totals = [Moments()] * num_dense
    for result in results:
        totals = [total.joined(Moments(*part)) for total, part in zip(totals, result["moments"], strict=True)]
    return totals


@dataclass(frozen=True)
class Study:
    """Counts the values and measures the dense columns of a unit's studied lines.

    The counts go to ``<unit>.counts`` in the journal's folder, the moments into the unit's result.
    """

    plan: Plan
    cuts: Cuts | None
    wants_counts: bool
    journal: Journal

    def __call__(self, text: UnitText) -> Finish:
        spec = self.plan.spec
        counts = [Counts() for _ in spec.sparse]
        moments = [Moments()] * len(spec.dense)
        keeps = self.wants_counts and has_strings(spec)
        if keeps:
            text.whole()
        cursor = Cursor(text, spec)
        for segment in segments(self.plan, self.cuts, text):
            parser = Parser(self.plan.spec_of(segment.split), _ROWS, keep_spans=keeps)
            for raw in cursor.rows(parser, segment.stop):
                if segment.split not in self.plan.studied:
                    continue
                if self.wants_counts:
                    _count(counts, raw, spec)
                moments = [
                    total.joined(moments_of(values)) for total, values in zip(moments, raw.dense, strict=True)
                ]
        result = {**summary(text), "moments": [[m.count, m.mean, m.squares] for m in moments]}
        unit = self.journal.unit(text.source, text.unit)
        if self.wants_counts:
            result["entries"] = self._write_counts(unit, text, counts)
        return partial(unit.land, result)

    def _write_counts(self, unit: Unit, text: UnitText, counts: Sequence[Counts]) -> list[int]:
        spec = self.plan.spec
        found = [count.sorted() for count in counts]
        strings = None
        if has_strings(spec):
            # other features' keys are their values: their spans are empty
            spans = [
                part.spans if column.kind == "string" else part.spans * 0
                for column, part in zip(spec.sparse, found, strict=True)
            ]
            strings = gather_strings(
                text.whole().text, np.concatenate(spans), ord(spec.quote) if spec.quote else -1
            )
        with unit.write(".counts") as temporary:
            write_counts(temporary, found, strings)
        return [len(part.keys) for part in found]


def has_strings(spec: Spec) -> bool:
    """Whether vocabularies must remember what the keys stand for."""
    return any(column.kind == "string" for column in spec.sparse)


def _count(counts: Sequence[Counts], raw: RawColumns, spec: Spec) -> None:
    slots = list_slots(spec)
    for count, column in zip(counts, spec.sparse, strict=True):
        is_list, slot = slots[column.name]
        if is_list:
            stop = raw.list_ends[slot, -1]
            count.add(raw.list_keys[slot, :stop], raw.list_spans[slot, :stop])
        else:
            count.add(raw.keys[slot], raw.spans[slot])
