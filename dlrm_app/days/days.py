"""dlrm-days: goes through the days in their order, learns those that are new, and names those that are missing or changed."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import date
from functools import cache
from pathlib import Path

from dlrm_app.config.days import DaysConfig
from dlrm_app.days.day import Day, History, Run, prune, publish
from dlrm_app.days.record import DAYS, DayRecord, parent_checksum, read_records, redo, write_lines
from dlrm_app.distributed.ranks import Ranks
from dlrm_app.errors import ConfigError, DataError
from dlrm_app.files import explained_disk_errors, held_lock
from dlrm_app.preprocess.units.source import Source, content_checksum, find_files
from dlrm_app.table import text_table
from dlrm_app.text import count, fixed, listed, percent

logger = logging.getLogger(__name__)
SHOWN = 14
"""Days in the table at the end."""


def go_through_days(config: DaysConfig, run: Run, ranks: Ranks) -> list[DayRecord]:
    """Learns each day that has files and is not done; gives the records of all days that are done.

    ``run``: does the work of another command. Raises DlrmError for what a user can fix; the same command then goes on.
    """
    output = Path(config.output).absolute()
    with ExitStack() as stack:
        if ranks.is_first:
            (output / DAYS).mkdir(parents=True, exist_ok=True)
            refusal = f"another dlrm-days is working on output={output}: wait for it"
            stack.enter_context(held_lock(output / ".lock", refusal))
        stack.enter_context(explained_disk_errors(output, "then run the same command again"))
        records = read_records(output)
        new, missing, late = days_to_do(config, [record.day for record in records])
        if missing and not (records or new):
            files = config.input.days.format(day=date.fromisoformat(missing[0]))
            raise DataError(
                f"input.days has no files from {missing[0]} to {missing[-1]}: looked for {files} in {Path.cwd()}"
            )
        for day in new:
            record = Day(config, day, History(output, records), run, ranks.is_first).learn()
            logger.info("%s: %s", record.day, f"held back: {record.held}" if record.held else "published")
            records.append(record)
            if ranks.is_first:
                conclude(config, History(output, records))
        if ranks.is_first:
            marks = conclude(config, History(output, records))
            print(days_table(records[-SHOWN:]))
            _warn(missing, late, marks, output)
            print(f"{count(len(new), 'new day')}, {count(len(records), 'day')} in all")
    return records


def days_to_do(config: DaysConfig, done: Sequence[str]) -> tuple[list[date], list[str], list[str]]:
    """(Days to learn, days without files, days whose files have come after a later day was learnt, which are left out)."""
    days = [day for day in config.days.days() if day.isoformat() not in done]
    missing = [day.isoformat() for day in days if not files_of(config, day)]
    late = [name for day in days if (name := day.isoformat()) not in missing and done and name < done[-1]]
    return [day for day in days if day.isoformat() not in (*missing, *late)], missing, late


def files_of(config: DaysConfig, day: date) -> list[Source]:
    """The files of a day as they are now; none where nothing is found."""
    try:
        return find_files("input.days", config.input.days.format(day=day))
    except ConfigError:
        return []


def conclude(config: DaysConfig, history: History) -> dict[str, str]:
    """Brings what follows from the records up to date: the link to the published day, what is kept, days.jsonl; gives the marks."""
    if history.published:
        publish(history)
        prune(history, config.days.num_kept)
    marks: dict[str, str] = {}
    for record in history.records:
        is_kept = (history.folder(record.day) / "dataset").is_dir()
        if is_kept and (change := _change(record, config)):
            marks[record.day] = change
        elif record.parent in marks:
            marks[record.day] = f"made from {record.parent}, which has changed"
        elif record.parent_record != parent_checksum(history.output, record.parent):
            marks[record.day] = f"made from another {record.parent} than the one that is there now"
    write_lines(history.output, history.records, marks)
    return marks


def _change(record: DayRecord, config: DaysConfig) -> str | None:
    """How the day's files differ from those that it was made of; files that are gone are no change, logs are rotated."""
    before = {source.path: source for source in record.sources}
    for source in files_of(config, date.fromisoformat(record.day)):
        known = before.get(str(source.path))
        if known is None:
            return f"its file {source.path} has come since"
        version = (known.bytes, known.modified_ns, known.tag)
        if source.version != version and _checksum(source) != known.checksum:
            return f"its file {source.path} has changed since"
    return None


@cache
def _checksum(source: Source) -> str:
    return content_checksum(source)


def _warn(missing: Sequence[str], late: Sequence[str], marks: Mapping[str, str], output: Path) -> None:
    if missing:
        logger.warning("without files, left out: %s", listed(missing, 7))
    if late:
        logger.warning("files came after later days were learnt, left out: %s", listed(late, 7))
    for day, mark in marks.items():
        logger.warning("%s: %s", day, mark)
    if first := min([*late, *marks], default=None):
        following = [folder for folder in sorted((output / DAYS).glob("*-*-*")) if folder.name >= first]
        logger.warning("to learn from %s on again, %s", first, redo(following))


def days_table(records: Sequence[DayRecord]) -> str:
    """A row a day."""
    rows = [
        [
            record.day,
            f"{record.rows:,}",
            percent(record.unseen_share),
            *(fixed(scores.auc if scores else None, 5) for scores in (record.next_day, record.first_model)),
            f"held back: {record.held}" if record.held else "published",
        ]
        for record in records
    ]
    return text_table(["day", "rows", "unseen", "AUC, yesterday's model", "first day's", ""], rows)
