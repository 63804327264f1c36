"""The pass that must see the training split before it can be encoded: counts of values, moments of dense columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dlrm_app.preprocess.encode.encoder import list_slots
from dlrm_app.preprocess.passes.count_file import CountFile, gather_strings, write_counts
from dlrm_app.preprocess.passes.counting import Counts
from dlrm_app.preprocess.passes.moments import Moments, moments_of
from dlrm_app.preprocess.passes.passes import Cursor, segments
from dlrm_app.preprocess.read.parser import Parser, RawColumns
from dlrm_app.preprocess.read.spec import Spec
from dlrm_app.preprocess.units.executor import Finish
from dlrm_app.preprocess.units.journal import Journal, Unit
from dlrm_app.preprocess.units.units import TextRange, UnitText
from dlrm_app.preprocess.units.work_plan import Cuts, Plan

_ROWS = 1 << 14


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

    def __call__(self, text: UnitText) -> Finish[StudiedUnit]:
        spec = self.plan.spec
        counts = [Counts() for _ in spec.sparse]
        moments = [Moments()] * len(spec.dense)
        keeps = self.wants_counts and has_strings(spec)
        if keeps:
            text.load()
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
        text_range = text.finish()
        unit = self.journal.unit(text.source, text.unit)
        entries = self._write_counts(unit, text, counts) if self.wants_counts else ()
        return unit.finish(StudiedUnit(text_range, tuple(moments), entries))

    def _write_counts(
        self, unit: Unit[StudiedUnit], text: UnitText, counts: Sequence[Counts]
    ) -> tuple[int, ...]:
        spec = self.plan.spec
        features = [count.sorted() for count in counts]
        strings = None
        if has_strings(spec):
            # other features' keys are their values: their spans are empty
            spans = [
                part.spans if column.kind == "string" else part.spans * 0
                for column, part in zip(spec.sparse, features, strict=True)
            ]
            strings = gather_strings(
                text.load().text, np.concatenate(spans), ord(spec.quote) if spec.quote else -1
            )
        with unit.write(".counts") as temporary:
            write_counts(temporary, features, strings)
        return tuple(len(part.keys) for part in features)


def count_file(journal: Journal[StudiedUnit], unit: StudiedUnit) -> CountFile:
    """The counts that a unit left."""
    path = journal.path(unit.text.source, unit.text.unit, ".counts")
    return CountFile(path, len(unit.entries), sum(unit.entries))


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
