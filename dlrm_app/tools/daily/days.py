"""dlrm-days: goes through the days in order, trains on new ones, and names days that are missing or have changed."""

import logging
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from pathlib import Path

from dlrm_app.checksums import checksum
from dlrm_app.config.days import DaysConfig, composed_json
from dlrm_app.dataset.manifest import MANIFEST
from dlrm_app.dataset.splits import ManifestSource
from dlrm_app.dates import day_of
from dlrm_app.distributed.runtime import join_ranks
from dlrm_app.errors import ConfigError, DataError, DlrmError, ExitCode, Problem, refuse_if
from dlrm_app.files import explained_disk_errors
from dlrm_app.locks import held_lock
from dlrm_app.logs.sources.lake import partition_of
from dlrm_app.logs.sources.source import InputFile, has_changed
from dlrm_app.result import Paragraph, Result
from dlrm_app.table import text_table
from dlrm_app.text import count, fixed, listed, percent
from dlrm_app.tools.daily.day import Day
from dlrm_app.tools.daily.gate import rules_rows, why_held
from dlrm_app.tools.daily.plan import DaysPlan, files_of, plan_days
from dlrm_app.tools.daily.publish import prune, publish, track_published
from dlrm_app.tools.daily.record import (
    DAYS,
    LOCK,
    RECORD,
    UNREPORTED,
    DayRecord,
    read_records,
    redo_hint,
    write_lines,
)
from dlrm_app.tools.daily.settings import sample_settings
from dlrm_app.tools.daily.steps import RunCommand

logger = logging.getLogger(__name__)
COMMAND_SECONDS = 600
"""Seconds that days.on_held may take."""
_FIX = "fix its files or the settings and run the same command; a day without files is left out"
Changed = Callable[[InputFile, ManifestSource], bool]
"""True if a file has changed; reads it at most once."""


@dataclass(frozen=True)
class Outcome(Result):
    """The state of all days.

    ``records``: the records of all finished days.
    ``missing``: days after the last of them.
    ``changed``: days whose files changed or came late.
    ``num_new``: the number of days that this call finished.
    ``page``: the page about all days, if it was written.
    """

    path: Path
    records: list[DayRecord]
    missing: list[str]
    changed: list[str]
    num_new: int = 0
    page: Path | None = None

    @property
    def exit_code(self) -> ExitCode:
        """DONE if the newest day is published and nothing is missing or changed."""
        if self.records and not self.records[-1].published:
            return ExitCode.DAY_HELD
        if self.changed:
            return ExitCode.DAYS_CHANGED
        return ExitCode.DAYS_MISSING if self.missing else ExitCode.DONE

    def paragraphs(self) -> Iterable[Paragraph]:
        yield f"{count(self.num_new, 'new day')}, {count(len(self.records), 'day')} in all"
        if self.page is not None:
            yield f"page: {self.page}"


def go_through_days(config: DaysConfig, run: RunCommand) -> Outcome:
    """Trains on each day that has files and is not done. Returns the state of all days, the same on every rank.

    ``run``: runs another command. Raises DlrmError for problems a user can fix; the same command then continues.
    """
    timeout = timedelta(
        minutes=composed_json("train", sample_settings(config)["train"])["trainer"]["timeout_minutes"]
    )
    with join_ranks(timeout, job="days") as ranks, ExitStack() as stack:
        output = Path(config.output).absolute()
        stack.enter_context(explained_disk_errors(output, "then run the same command again"))
        ranks.together(lambda: stack.enter_context(_held(output)) if ranks.is_first else None)
        changed = cache(partial(has_changed, reads_all=config.days.verify_files))
        records, plan = ranks.on_first(lambda: _begin(config, output, changed))
        for day in plan.new:
            published = [record for record in records if record.published]
            work = Day(config, day, published, output / DAYS, run, ranks)
            record = ranks.together(partial(_learn, work))
            logger.info("%s\n%s", _summary(record), text_table(*rules_rows(record.rules)))
            records.append(record)
            ranks.on_first(partial(_end_day, config, output, records, changed))
        marks = ranks.on_first(lambda: _end(config, output, records, plan, changed))
    last = records[-1].day if records else ""
    missing = [day for day in plan.missing if day > last]
    return Outcome(Path(config.output), records, missing, [*plan.late, *marks], len(plan.new))


@contextmanager
def _held(output: Path) -> Iterator[None]:
    """Makes ``output`` and locks it while the block runs. Raises DlrmError if another dlrm-days works there."""
    (output / DAYS).mkdir(parents=True, exist_ok=True)
    with held_lock(output / LOCK, f"another dlrm-days is working on output={output}: wait for it"):
        yield


def _begin(config: DaysConfig, output: Path, changed: Changed) -> "tuple[list[DayRecord], DaysPlan]":
    """The finished days and the plan of the others. Ends the last day, in case it was interrupted there."""
    records = read_records(output)
    plan = plan_days(config, [record.day for record in records])
    if plan.missing and not (records or plan.new):
        files = config.input.files(day_of(plan.missing[0]))
        first, last = plan.missing[0], plan.missing[-1]
        rule = f"has no files, or too few rows, from {first} to {last} (looked for {files} in {Path.cwd()})"
        raise _NoDaysError(Problem("input.days", rule))
    if plan.new:
        _refuse_log(config)
    conclude(config, output, records, changed)  # if the published day was deleted, publishes the one before
    _report_held(config, output, records)
    return records, plan


def _learn(day: Day) -> DayRecord:
    """Trains on ``day``. Raises DataError, which names the day, if its files or the settings do not fit."""
    try:
        return day.learn()
    except DlrmError as error:
        if (day.folder / "dataset" / MANIFEST).is_file() and not isinstance(error, ConfigError):
            raise
        # exit code 2 means that nothing was started, so an error of the configuration becomes one of the data here
        raise DataError(Problem(day.day.isoformat(), "failed", _FIX), *error.problems) from error


def _end_day(config: DaysConfig, output: Path, records: Sequence[DayRecord], changed: Changed) -> None:
    conclude(config, output, records, changed)
    _report_held(config, output, records[-1:])


def _end(
    config: DaysConfig, output: Path, records: Sequence[DayRecord], plan: "DaysPlan", changed: Changed
) -> dict[str, str]:
    """Logs warnings about the days that need attention. Returns the marks of days that changed."""
    marks = conclude(config, output, records, changed)
    _warn(plan.missing, plan.late, marks, output)
    _warn_of_held(config, records, output)
    return marks


def _refuse_log(config: DaysConfig) -> None:
    """Raises ConfigError for a log without clicks, from which no model can learn, and for sampled negatives.

    Rows that are held back, which are learnt a day later, would not be sampled like the others.
    """
    settings = composed_json("preprocess", sample_settings(config)["preprocess"])
    columns, problems = settings["dataset"]["columns"], []
    if not any(column["role"] == "label" for column in columns):
        cure = "give the one that tells clicks this role"
        problems.append(Problem(f"dataset={config.dataset}", "has no column with the role label", cure))
    if settings["sampling"]["negatives"] is not None:
        rule = "samples the rows to train on alone, and dlrm-days learns the rows held back on the next day"
        cure = "sample the log before, all rows alike, and give dataset.negatives_kept in its YAML"
        problems.append(Problem("preprocess: sampling.negatives", rule, cure))
    refuse_if(problems)


class _NoDaysError(DataError):
    """Raised if there are no days."""

    exit_code = ExitCode.DAYS_MISSING


def _report_held(config: DaysConfig, output: Path, records: Sequence[DayRecord]) -> None:
    for record in records:
        folder = output / DAYS / record.day
        if record.held and (folder / UNREPORTED).is_file():
            report_held_day(config.days.command_on_held, folder / RECORD)
            (folder / UNREPORTED).unlink()


def report_held_day(command: Sequence[str], record: Path) -> None:
    """Runs the user's ``command`` with the path of a held day's record. A failure is reported, and changes nothing."""
    if not command:
        return
    try:
        words = [*command, str(record)]
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True) as process:
            try:
                code = process.wait(timeout=COMMAND_SECONDS)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
                raise
        failure = f"ended with code {code}" if code else ""
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        failure = f"failed: {error}"
    if failure:
        logger.warning(
            "days.on_held: %s %s; %s says why the day is held back", shlex.join(command), failure, record
        )


def conclude(
    config: DaysConfig, output: Path, records: Sequence[DayRecord], changed: Changed
) -> dict[str, str]:
    """Updates the link to the published day, deletes old files and writes days.jsonl.

    Returns the marks of days that changed: day → the reason why it would now have another result.
    """
    days = output / DAYS
    if published := [record.day for record in records if record.published]:
        publish(days / published[-1])
        track_published(days / published[-1])
        prune(days, records, config.days.num_kept)
    marks: dict[str, str] = {}
    now = {record.day: checksum(days / record.day / RECORD) for record in records}
    for record in records:
        is_kept = (days / record.day / "dataset").is_dir()
        if is_kept and (change := _change(record, config, changed)):
            marks[record.day] = change
        elif record.parent in marks:
            marks[record.day] = f"made from {record.parent}, which has changed"
        elif record.parent and now.get(record.parent) != record.parent_record:
            marks[record.day] = f"made from another {record.parent} than the one that is there now"
    write_lines(output, records, marks)
    return marks


def _change(record: DayRecord, config: DaysConfig, changed: Changed) -> str | None:
    """The difference between the day's files and those it was made from. Missing files do not count: logs rotate."""
    before = {source.path: source for source in record.sources}
    files = files_of(config, day_of(record.day))
    gone = [before[path] for path in before.keys() - {source.path for source in files}]
    for source in files:
        earlier = before.get(source.path) or _moved(source, gone, changed)
        if earlier is None:
            return f"its file {source.path} has come since"
        if changed(source, earlier):
            return f"its file {source.path} has changed since"
    return None


def _moved(source: InputFile, gone: list[ManifestSource], changed: Changed) -> ManifestSource | None:
    """Finds ``source`` among the ``gone`` files, under another path; removes it from them. Paths may be relative."""
    for earlier in gone:
        keys = partition_of(earlier.path)
        is_same_file = earlier.bytes == source.bytes and Path(earlier.path).name == Path(source.path).name
        has_keys = all(keys.get(key, value) == value for key, value in source.partition.items())
        if is_same_file and has_keys and not changed(source, earlier):
            gone.remove(earlier)
            return earlier
    return None


def _warn(missing: Sequence[str], late: Sequence[str], marks: Mapping[str, str], output: Path) -> None:
    if missing:
        logger.warning(
            "without files, or with too few rows to hold some back, left out: %s", listed(missing, 7)
        )
    if late:
        logger.warning("files came after later days were trained on, left out: %s", listed(late, 7))
    for day, mark in marks.items():
        logger.warning("%s: %s", day, mark)
    if first := min([*late, *marks], default=None):
        following = [folder for folder in sorted((output / DAYS).glob("*-*-*")) if folder.name >= first]
        logger.warning("to train from %s on again, %s", first, redo_hint(following))


def _warn_of_held(config: DaysConfig, records: Sequence[DayRecord], output: Path) -> None:
    """Logs which finished days are still held back although days.accept would publish them now."""
    for record in records:
        is_accepted = config.days.is_accepted(day_of(record.day))
        if record.held and is_accepted and why_held(record.rules, is_accepted=True) is None:
            # a late day would be left out
            following = [each.day for each in records if each.day >= record.day]
            folders = [output / DAYS / day for day in following]
            logger.warning(
                "days.accept: %s was held back before; to publish it, %s", record.day, redo_hint(folders)
            )


def _summary(record: DayRecord) -> str:
    end = f"held back: {record.held}" if record.held else "published"
    first, scores = record.first_model, record.next_day
    scored = f"; AUC of yesterday's model {fixed(scores.auc, 5)}" if scores else ""
    scored += f", of the first day's {fixed(first.auc, 5)}" if first else ""
    unseen = (
        f", {percent(record.unseen_share)} of lookups never seen" if record.unseen_share is not None else ""
    )
    return f"{record.day}: {end}; {record.rows:,} rows{unseen}{scored}"
