"""Runs a pass over its items that are not done yet, with a progress bar."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

from dlrm_app.errors import DataError
from dlrm_app.journal import Journal, R
from dlrm_app.preprocessing.passes.encode_pass import EncodedUnit
from dlrm_app.preprocessing.passes.plan import CountedUnit, Plan, unit_feeds
from dlrm_app.preprocessing.passes.study import StudiedUnit
from dlrm_app.preprocessing.units.executor import Executor, Feed, NumberedItem, Pass, SingleFeed
from dlrm_app.preprocessing.units.parquet_units import InputFeed, InputUnit
from dlrm_app.preprocessing.units.source import DamagedFileError, InputFile
from dlrm_app.preprocessing.units.unit_text import TextFeed, source_prefix, unit_number
from dlrm_app.preprocessing.units.work_folder import begun_passes, pass_journal
from dlrm_app.progress import work_bar

U = TypeVar("U", CountedUnit, StudiedUnit, EncodedUnit)
"""The record of a pass over units."""


@dataclass(frozen=True)
class PassRunner:
    """Runs passes over the rows of ``plan``, in the threads or processes of ``executor``."""

    plan: Plan
    executor: Executor

    def journal(self, name: str, record: type[R]) -> Journal[R]:
        """The journal of pass ``name``."""
        return pass_journal(self.plan.output, name, record)

    def over_numbers(self, work: Pass[NumberedItem, R], count: int) -> list[R]:
        """Runs ``work`` on the numbers below ``count`` that are not done; returns all records."""
        items = [NumberedItem(number) for number in range(count)]
        feeds = [SingleFeed(item) for item in items if not work.journal.is_done(item.name)]
        with closing(self.executor.run(work, feeds)) as records:
            for _ in work_bar(records, desc=work.title, total=len(feeds), disable=not feeds):
                pass
        return [work.journal.load(item.name) for item in items]

    def over_units(
        self, work: Pass[InputUnit, U], sources: Sequence[InputFile], check: Callable[[U], None] | None = None
    ) -> list[U]:
        """Runs ``work`` on the units of ``sources`` that are not done; returns all records, in order.

        ``check`` is called with each record as it comes.
        """
        feeds: list[Feed[InputUnit]] = [
            feed for source in sources for feed in missing_units(self.plan, source, work.journal)
        ]
        total = sum(source.bytes for source in sources)
        done = sum(record.text.file_bytes for record in _records(sources, work.journal))
        with work_bar(
            desc=work.title, total=total, initial=done, unit="B", unit_scale=True, disable=not feeds
        ) as bar:
            try:
                # an error must not leave threads at work
                with closing(self.executor.run(work, feeds)) as records:
                    for record in records:
                        bar.update(record.text.file_bytes)
                        if check is not None:
                            check(record)
            except DamagedFileError as error:
                hint = f"then {self._repair_hint(error.source, work.journal)}"
                raise DataError(*(problem.also(hint) for problem in error.problems)) from error
        return _records(sources, work.journal)

    def _repair_hint(self, source: int, journal: Journal[U]) -> str:
        """What to do once a damaged source is replaced. Forgets its records, unless later passes build on them."""
        output = self.plan.output
        if begun_passes(output, source) - {journal.folder.name}:
            return f"delete {output} and start again"
        journal.forget(source_prefix(source))
        return "run the same command again; it continues where it stopped"


def _records(sources: Iterable[InputFile], journal: Journal[U]) -> list[U]:
    """The records of all finished units, in order."""
    names = [name for source in sources for name in journal.done(source_prefix(source.index))]
    return [journal.load(name) for name in names]


def missing_units(plan: Plan, source: InputFile, journal: Journal[U]) -> Sequence[InputFeed]:
    """Feeds of the units that are not done."""
    names, unit_bytes = journal.done(source_prefix(source.index)), plan.unit_bytes
    done = frozenset(map(unit_number, names))
    if not source.is_compressed:
        columns = plan.columns_of(source) if source.format == "parquet" else {}
        return unit_feeds(source, columns, unit_bytes, lambda unit: unit not in done)
    if done and done == set(range(len(done))) and journal.load(names[-1]).text.is_last:
        return []
    return [TextFeed(source, unit_bytes, skip=done)]
