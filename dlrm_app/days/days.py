"""dlrm-days: goes through the days in their order, learns those that are new, and names those that are missing or changed."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import date
from functools import cache
from pathlib import Path

from dlrm_app.config.days import DaysConfig
from dlrm_app.days.day import Day, Run, prune, publish
from dlrm_app.days.record import DAYS, RECORD, DayRecord, read_records, redo, write_lines
from dlrm_app.distributed.ranks import Ranks
from dlrm_app.errors import ConfigError, DataError, DlrmError
from dlrm_app.files import checksum, explained_disk_errors, held_lock
from dlrm_app.preprocess.units.parquet_units import footer_of
from dlrm_app.preprocess.units.source import Source, content_checksum, find_files
from dlrm_app.preprocess.units.unit_text import beginning_of
from dlrm_app.text import count, fixed, listed, percent

logger = logging.getLogger(__name__)


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
                f"input.days has no files, or too few rows, from {missing[0]} to {missing[-1]}: looked for {files} in {Path.cwd()}"
            )
        if ranks.is_first:  # if the published day was deleted, the one before is published again
            conclude(config, output, records)
        for day in new:
            published = [record for record in records if record.published]
            record = Day(config, day, published, output / DAYS, run, ranks.is_first).learn()
            logger.info(_summary(record))
            records.append(record)
            if ranks.is_first:
                conclude(config, output, records)
        if ranks.is_first:
            _warn(missing, late, conclude(config, output, records), output)
            print(f"{count(len(new), 'new day')}, {count(len(records), 'day')} in all")
    return records


def days_to_do(config: DaysConfig, done: Sequence[str]) -> tuple[list[date], list[str], list[str]]:
    """(Days to learn, days without rows, days whose files have come after a later day was learnt, which are left out)."""
    days = [day for day in config.days.days() if day.isoformat() not in done]
    missing = [day.isoformat() for day in days if not _has_rows(files_of(config, day), config.days.holdout)]
    late = [name for day in days if (name := day.isoformat()) not in missing and done and name < done[-1]]
    return [day for day in days if day.isoformat() not in (*missing, *late)], missing, late


def files_of(config: DaysConfig, day: date) -> list[Source]:
    """The files of a day as they are now; none where nothing is found."""
    try:
        return find_files("input.days", config.input.days.format(day=day))
    except ConfigError:
        return []


def _has_rows(sources: Sequence[Source], holdout: float) -> bool:
    """True if the share ``holdout`` of the rows is one or more. Of a text one line is left out, which may be a header."""
    rows = 0
    try:
        for source in sources:
            if source.format == "parquet":
                rows += footer_of(source).num_rows
                continue
            for text in beginning_of(source).items():
                rows += (
                    sum(int((each.text[each.start : each.stop] == 10).sum()) for each in text.blocks()) - 1
                )
                if not text.finish().is_last:
                    return True
    except DlrmError:  # what is damaged is named once its turn has come
        return True
    return rows * holdout >= 1


def conclude(config: DaysConfig, output: Path, records: Sequence[DayRecord]) -> dict[str, str]:
    """Brings what follows from the records up to date: the link to the published day, what is kept, days.jsonl; gives the marks."""
    days = output / DAYS
    if published := [record.day for record in records if record.published]:
        publish(days / published[-1])
        prune(days, records, config.days.num_kept)
    marks: dict[str, str] = {}
    now = {record.day: checksum(days / record.day / RECORD) for record in records}
    for record in records:
        is_kept = (days / record.day / "dataset").is_dir()
        if is_kept and (change := _change(record, config)):
            marks[record.day] = change
        elif record.parent in marks:
            marks[record.day] = f"made from {record.parent}, which has changed"
        elif record.parent and now.get(record.parent) != record.parent_record:
            marks[record.day] = f"made from another {record.parent} than the one that is there now"
    write_lines(output, records, marks)
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
        logger.warning(
            "without files, or with too few rows to hold one back, left out: %s", listed(missing, 7)
        )
    if late:
        logger.warning("files came after later days were learnt, left out: %s", listed(late, 7))
    for day, mark in marks.items():
        logger.warning("%s: %s", day, mark)
    if first := min([*late, *marks], default=None):
        following = [folder for folder in sorted((output / DAYS).glob("*-*-*")) if folder.name >= first]
        logger.warning("to learn from %s on again, %s", first, redo(following))


def _summary(record: DayRecord) -> str:
    end = f"held back: {record.held}" if record.held else "published"
    first, scores = record.first_model, record.next_day
    judged = f"; AUC of yesterday's model {fixed(scores.auc, 5)}" if scores else ""
    judged += f", of the first day's {fixed(first.auc, 5)}" if first else ""
    unseen = (
        f", {percent(record.unseen_share)} of lookups never seen" if record.unseen_share is not None else ""
    )
    return f"{record.day}: {end}; {record.rows:,} rows{unseen}{judged}"
