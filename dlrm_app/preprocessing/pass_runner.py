"""Runs a pass over its items that are not done yet, with a progress bar."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

from dlrm_app.errors import DataError, DlrmError, Problem
from dlrm_app.journal import REPEAT, Journal, R
from dlrm_app.logs.sources.feeds import InputFeed, InputUnit
from dlrm_app.logs.sources.source import DamagedFileError, InputFile
from dlrm_app.logs.sources.text_units import TextFeed
from dlrm_app.logs.sources.units import UnitName
from dlrm_app.preprocessing.passes.encode_pass import EncodedUnit
from dlrm_app.preprocessing.passes.plan import CountedUnit, InputPlan
from dlrm_app.preprocessing.passes.study import StudiedUnit
from dlrm_app.preprocessing.passes.time_split import TimedUnit
from dlrm_app.preprocessing.work.executor import Executor, Feed, NumberedItem, Pass, SingleFeed
from dlrm_app.preprocessing.work.work_folder import begun_passes, pass_journal
from dlrm_app.progress import work_bar

U = TypeVar("U", CountedUnit, TimedUnit, StudiedUnit, EncodedUnit)
"""The record of a pass over units."""


@dataclass(frozen=True)
class PassRunner:
    """Runs passes over the rows of ``plan``, in the threads or processes of ``executor``."""

    plan: InputPlan
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
        bundles = self.plan.bundles(sources)
        names, feeds = self._remaining(bundles, work.journal)
        total = sum(source.bytes for source in sources)
        done = sum(
            work.journal.load(str(name)).extent.file_bytes for units in names.values() for name in units
        )
        with work_bar(
            desc=work.title, total=total, initial=done, unit="B", unit_scale=True, disable=not feeds
        ) as bar:
            try:
                # threads must stop when an error is raised
                with closing(self.executor.run(work, feeds)) as records:
                    for record in records:
                        bar.update(record.extent.file_bytes)
                        if check is not None:
                            check(record)
            except DamagedFileError as error:
                hint = f"then {self._repair_hint(error.source, work.journal)}"
                raise DataError(*(problem.also(hint) for problem in error.problems)) from error
        names, missing = self._remaining(bundles, work.journal)
        if missing:
            rule = "does not show all units that other processes have finished, as a network's disk may do for a while"
            raise DlrmError(Problem(f"output={self.plan.output}", rule, REPEAT.removeprefix("then ")))
        return [work.journal.load(str(name)) for bundle in bundles for name in names[bundle[0]]]

    def _remaining(
        self, bundles: Sequence[tuple[InputFile, ...]], journal: Journal[U]
    ) -> tuple[dict[InputFile, list[UnitName]], list[Feed[InputUnit]]]:
        """Returns (the finished units by the first source of their bundle, the feeds of the others)."""
        names = _done(bundles, journal)
        missing = (missing_units(self.plan, each, names[each[0]], journal) for each in bundles)
        return names, [feed for feeds in missing for feed in feeds]

    def _repair_hint(self, source: int, journal: Journal[U]) -> str:
        """The step after replacing a damaged source. Forgets its records, unless later passes build on them."""
        output = self.plan.output
        if begun_passes(output, source) - {journal.folder.name}:
            return f"delete {output} and start again"
        for name in journal.done():
            if (unit := UnitName.parse(name)) and source in unit.sources:
                journal.forget(name)
        return "run the same command again; it continues where it stopped"


def _done(bundles: Sequence[tuple[InputFile, ...]], journal: Journal[U]) -> dict[InputFile, list[UnitName]]:
    """The first source of each bundle → its finished units, in order.

    Leaves out work on other bundles, which was done before a file was replaced.
    """
    named = {(bundle[0].index, bundle[-1].index): list[UnitName]() for bundle in bundles}
    for name in map(UnitName.parse, journal.done()):
        if name is not None and (name.source, name.last) in named:
            named[name.source, name.last].append(name)
    return {bundle[0]: named[bundle[0].index, bundle[-1].index] for bundle in bundles}


def missing_units(
    plan: InputPlan, bundle: tuple[InputFile, ...], done: Sequence[UnitName], journal: Journal[U]
) -> Sequence[InputFeed]:
    """Feeds of the units of ``bundle`` that are not ``done``."""
    source, numbers = bundle[0], frozenset(name.unit for name in done)
    if len(bundle) > 1:
        return [] if done else plan.feeds(bundle)
    if not source.is_read_in_order:
        return plan.feeds(bundle, lambda unit: unit not in numbers)
    if done and numbers == set(range(len(done))) and journal.load(str(done[-1])).extent.is_last:
        return []
    return [TextFeed(source, plan.unit_bytes, skip=numbers)]
