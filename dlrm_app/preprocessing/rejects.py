"""Malformed lines of a run: refuses too many, and finds each one's place in its file."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from dlrm_app.journal import Journal
from dlrm_app.logs.rejects import MAX_SHOWN, RejectedLine, read_rejects, refuse_rejects
from dlrm_app.logs.sources.source import MAX_RATIO
from dlrm_app.preprocessing.passes.encode_pass import EncodedUnit
from dlrm_app.preprocessing.passes.plan import InputPlan


@dataclass
class RejectLimit:
    """Checks units as they are encoded, to fail as soon as the share of malformed lines must become too large."""

    plan: InputPlan
    journal: Journal[EncodedUnit]
    max_fraction: float
    _units: list[EncodedUnit] = field(default_factory=list)
    _size: int = 0
    _lines: int = 0
    _rejects: int = 0

    def check(self, unit: EncodedUnit) -> None:
        """Raises DataError if there are too many rejects, ``unit`` included."""
        self._units.append(unit)
        self._size += unit.extent.size
        self._lines += unit.lines
        self._rejects += unit.rejects
        total = sum(source.bytes * (MAX_RATIO if source.is_compressed else 1) for source in self.plan.sources)
        if self._rejects > self.max_fraction * self._lines * max(total / max(self._size, 1), 1):
            self.refuse(sorted(self._units, key=lambda unit: (unit.extent.source, unit.extent.unit)))

    def refuse(self, units: Sequence[EncodedUnit]) -> None:
        """Raises DataError, with the first rejects, if ``units`` have more than ``max_fraction`` of all lines."""
        lines, rejects = sum(unit.lines for unit in units), sum(unit.rejects for unit in units)
        cure = "check dataset= and the files, or raise it to leave these lines out"
        shown = list(islice(rejects_of(self.plan, self.journal, units), MAX_SHOWN))
        labels = {column.name for column in self.plan.spec.columns if column.role == "label"}
        if rated := next(
            (each.column for each in shown if each.column in labels and _RATING.search(each.reason)), None
        ):
            cure = (
                f"a label is 0 or 1, so make one of {rated} before, such as 1 from 4 on: (frame.{rated} >= 4)"
                f".astype(int) in pandas, CAST({rated} >= 4 AS INTEGER) in SQL; of counts, two weighted rows for each, "
                f"as dlrm-check input= says; to leave these lines out would change the click rate"
            )
        refuse_rejects(rejects, lines, self.max_fraction, ((e.file, e.line, e.reason) for e in shown), cure)


_RATING = re.compile(r" is '[+-]?(\d+\.?\d*|\.\d+)', must be 0 or 1")
"""A label that is a number, as bad_value writes it."""


def rejects_of(
    plan: InputPlan, journal: Journal[EncodedUnit], units: Sequence[EncodedUnit]
) -> Iterator[RejectedLine]:
    """Every reject of ``units`` (in order), with its file and its line number there, from 1."""
    source, first_line = -1, 1
    for unit in units:
        if unit.extent.source != source:
            source = unit.extent.source
            is_text = plan.sources[source].format != "parquet"
            first_line = 2 if plan.spec.header and is_text else 1
        path = journal.path(unit.extent.name, ".rejects")
        if path.exists():
            for reject in read_rejects(path):
                index, line = unit.extent.place_of(reject.line)
                yield reject._replace(file=plan.sources[index].path, line=first_line + line)
        first_line += unit.lines
