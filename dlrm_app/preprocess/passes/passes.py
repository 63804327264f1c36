"""What the passes over the units share: where a unit's lines begin, which split they go to, how they are read."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dlrm_app.preprocess.read import lines
from dlrm_app.preprocess.read.parser import Parser, RawColumns
from dlrm_app.preprocess.read.rejects import RejectedLine, describe
from dlrm_app.preprocess.read.spec import Spec
from dlrm_app.preprocess.units.executor import Finish
from dlrm_app.preprocess.units.journal import Journal
from dlrm_app.preprocess.units.units import Block, TextRange, UnitText
from dlrm_app.preprocess.units.work_plan import Cuts, Plan, Segment

_ALL_LINES = 1 << 62


def segments(plan: Plan, cuts: Cuts | None, text: UnitText) -> list[Segment]:
    """Which lines of the unit go to which split."""
    split = plan.sources[text.source].split
    if cuts is None or split != "train":
        return [Segment(split, 0, None)]
    return cuts.segments(text.source, text.unit)


class Cursor:
    """A position in the lines of a unit, the file's header left out: ``line`` lines behind the first."""

    def __init__(self, text: UnitText, spec: Spec) -> None:
        self.text = text
        self.line = 0
        self._blocks = body(text, spec)
        self._block = Block(np.empty(0, np.uint8), 0, 0)
        self._rejects: list[RejectedLine] = []

    def rows(self, parser: Parser, until: int | None) -> Iterator[RawColumns]:
        """The rows of the lines before number ``until``, as many at a time as ``parser`` holds."""
        stop = _ALL_LINES if until is None else until
        while self.line < stop:
            if self._block.start == self._block.stop:
                block = next(self._blocks, None)
                if block is None:
                    break
                self._block = block
            text, start, end = self._block
            start, count, rejects = parser.parse(text, start, end, stop - self.line)
            self._rejects += [describe(reject, self.line, parser.spec, text) for reject in rejects]
            self._block = Block(text, start, end)
            self.line += count
            if parser.is_full:
                yield parser.take()
        if parser.rows:
            yield parser.take()

    def take_rejects(self) -> list[RejectedLine]:
        """The lines rejected since the last call."""
        rejects, self._rejects = self._rejects, []
        return rejects


def body(text: UnitText, spec: Spec) -> Iterator[Block]:
    """The unit's blocks of lines, the file's header left out."""
    for block in text.blocks():
        if spec.header and text.unit == 0 and block.start < block.stop:
            yield block._replace(start=block.start + lines.line_length(block.text, block.start))
            break
        yield block
    yield from text.blocks()


@dataclass(frozen=True)
class CountedUnit:
    """``lines``: of the unit, the file's header left out."""

    text: TextRange
    lines: int


@dataclass(frozen=True)
class CountLines:
    """How many lines each unit has."""

    title: ClassVar[str] = "counting lines"
    plan: Plan
    journal: Journal[CountedUnit]

    def __call__(self, text: UnitText) -> Finish[CountedUnit]:
        count = sum(int(lines.count_lines(*block)) for block in body(text, self.plan.spec))
        return self.journal.unit(text.source, text.unit).finish(CountedUnit(text.finish(), count))
