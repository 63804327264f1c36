"""rejects.max_fraction: a run fails once too many of its lines are malformed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import DataError
from dlrm_app.preprocess.passes.encode_pass import EncodedUnit
from dlrm_app.preprocess.read.rejects import REJECTS, RejectedLine, read_rejects
from dlrm_app.preprocess.units.gzip_text import MAX_RATIO
from dlrm_app.preprocess.units.journal import Journal
from dlrm_app.preprocess.units.work_plan import Plan

_SHOWN = 5


@dataclass
class RejectLimit:
    """Looks at units as they are encoded, while the malformed lines among them could still be few enough in the end."""

    plan: Plan
    journal: Journal[EncodedUnit]
    max_fraction: float
    _units: list[EncodedUnit] = field(default_factory=list)
    _size: int = 0
    _lines: int = 0
    _rejects: int = 0

    def check(self, unit: EncodedUnit) -> None:
        """Raises DataError if ``unit`` is one too many."""
        self._units.append(unit)
        self._size += unit.text.size
        self._lines += unit.lines
        self._rejects += unit.rejects
        total = sum(source.bytes * (MAX_RATIO if source.is_gzip else 1) for source in self.plan.sources)
        if self._rejects > self.max_fraction * self._lines * max(total / max(self._size, 1), 1):
            self._units.sort(key=lambda unit: (unit.text.source, unit.text.unit))
            refuse_if_many_rejects(self.plan, self.journal, self._units, self.max_fraction)


def refuse_if_many_rejects(
    plan: Plan, journal: Journal[EncodedUnit], units: Sequence[EncodedUnit], max_fraction: float
) -> None:
    """Raises DataError naming the first rejects if they are more than ``max_fraction`` of all lines."""
    lines, rejects = sum(unit.lines for unit in units), sum(unit.rejects for unit in units)
    if rejects <= max_fraction * lines:
        return
    all_rejects = rejects_of(plan, journal, units)
    first = [next(all_rejects) for _ in range(min(rejects, _SHOWN))]
    raise DataError(
        "\n".join(
            [
                f"{rejects:,} of {lines:,} lines are malformed, more than rejects.max_fraction={max_fraction} allows:",
                *(f"  {reject.file}:{reject.line}: {reject.reason}" for reject in first),
                *(["  …"] if rejects > len(first) else []),
                "check dataset= and the files, or raise rejects.max_fraction to leave these lines out",
            ]
        )
    )


def refuse_too_many_rejects(manifest: Manifest, max_fraction: float) -> None:
    """Raises DataError if a finished dataset lacks more than ``max_fraction`` of its lines."""
    rejects = sum(split.rejects for split in manifest.splits.values())
    lines = rejects + sum(split.rows for split in manifest.splits.values())
    if rejects > max_fraction * lines:
        raise DataError(
            f"{manifest.folder} is finished, without {rejects:,} of {lines:,} lines, which are malformed: more than "
            f"rejects.max_fraction={max_fraction} allows; raise it, or look at {manifest.folder / REJECTS}"
        )


def rejects_of(
    plan: Plan, journal: Journal[EncodedUnit], units: Sequence[EncodedUnit]
) -> Iterator[RejectedLine]:
    """Every reject of ``units``, which are in order, with its file and its line number there, from 1."""
    source, first_line = -1, 1
    for unit in units:
        if unit.text.source != source:
            source, first_line = unit.text.source, 2 if plan.spec.header else 1
        path = journal.path(source, unit.text.unit, ".rejects")
        if path.exists():
            for reject in read_rejects(path):
                yield reject._replace(file=plan.sources[source].path, line=first_line + reject.line)
        first_line += unit.lines
