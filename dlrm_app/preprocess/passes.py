"""What the passes over the units share: where a unit's lines begin, which split they go to, how they are read."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dlrm_app.preprocess import lines
from dlrm_app.preprocess.journal import Journal
from dlrm_app.preprocess.parser import Parser, RawColumns, Reject
from dlrm_app.preprocess.plan import Cuts, Plan, Segment
from dlrm_app.preprocess.spec import Spec
from dlrm_app.preprocess.units import UnitText

_ALL_LINES = 1 << 62


def body(text: UnitText, spec: Spec) -> int:
    """Where the lines of a unit begin, the file's header left out."""
    if not (spec.header and text.unit == 0) or text.start == text.stop:
        return text.start
    return text.start + text.text[text.start : text.stop].tobytes().index(b"\n") + 1


def summary(text: UnitText) -> dict[str, Any]:
    """What every result tells of its unit."""
    return {
        "source": text.source,
        "unit": text.unit,
        "size": text.size,
        "crc": text.crc,
        "is_last": text.is_last,
    }


def segments(plan: Plan, cuts: Cuts | None, text: UnitText) -> list[Segment]:
    """Which lines of the unit go to which split."""
    split = plan.sources[text.source].split
    if cuts is None or split != "train":
        return [Segment(split, 0, None)]
    return cuts.segments(text.source, text.unit)


@dataclass
class Cursor:
    """A place in a unit's lines: ``at`` in the text, ``line`` lines behind the first; rejects met since ``take``."""

    text: UnitText
    at: int
    line: int = 0
    rejects: list[Reject] = field(default_factory=list)

    def rows(self, parser: Parser, until: int | None) -> Iterator[RawColumns]:
        """The rows of the lines before number ``until``, as many at a time as ``parser`` holds."""
        stop = _ALL_LINES if until is None else until
        while self.at < self.text.stop and self.line < stop:
            self.at, count, rejects = parser.parse(self.text.text, self.at, self.text.stop, stop - self.line)
            self.rejects += [Reject(self.line + r.line, r.start, r.end, r.reason, r.detail) for r in rejects]
            self.line += count
            if parser.is_full:
                yield parser.take()
        if parser.rows:
            yield parser.take()

    def take_rejects(self) -> list[Reject]:
        rejects, self.rejects = self.rejects, []
        return rejects


@dataclass(frozen=True)
class CountLines:
    """How many lines each unit has."""

    plan: Plan
    journal: Journal

    def __call__(self, text: UnitText) -> dict[str, Any]:
        start = body(text, self.plan.spec)
        result = {**summary(text), "lines": int(lines.count_lines(text.text, start, text.stop))}
        self.journal.land(text.source, text.unit, result)
        return result
