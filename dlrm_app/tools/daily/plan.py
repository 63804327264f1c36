"""Plans the days to learn: those that have files and are not done."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from dlrm_app.config.days import DaysConfig
from dlrm_app.errors import ConfigError, DlrmError, Problem
from dlrm_app.logs.sources.find_sources import find_files
from dlrm_app.logs.sources.folders import NoFilesError
from dlrm_app.logs.sources.parquet_units import footer_of
from dlrm_app.logs.sources.source import InputFile
from dlrm_app.logs.sources.text_units import beginning_of

_MIN_HELD_OUT = 5
"""Rows that a day must hold back on average. A hash chooses them: one in 150 such days would have none."""


@dataclass(frozen=True)
class DaysPlan:
    """``new``: days to train on. ``missing``: days without rows. ``late``: days whose files came after a later day."""

    new: list[date]
    missing: list[str]
    late: list[str]


def plan_days(config: DaysConfig, done: Sequence[str]) -> DaysPlan:
    """Plans the days that are not ``done``. Raises ConfigError for a file of two days."""
    files = {day: files_of(config, day) for day in config.list_days() if day.isoformat() not in done}
    day_of: dict[str, date] = {}
    for day, path in ((day, source.path) for day, sources in files.items() for source in sources):
        if (first := day_of.setdefault(path, day)) != day:
            cure = "write two digits, as {day} does, or a delimiter after the day"
            raise ConfigError(Problem("input.days", f"takes {path} for {first} and for {day}", cure))
    missing = [day.isoformat() for day in files if not _has_rows(files[day], config.days.holdout)]
    late = [name for day in files if (name := day.isoformat()) not in missing and done and name < done[-1]]
    return DaysPlan([day for day in files if day.isoformat() not in (*missing, *late)], missing, late)


def files_of(config: DaysConfig, day: date) -> list[InputFile]:
    """The current files of a day; empty if there are none. Raises ConfigError for files that cannot be input."""
    try:
        return find_files("input.days", config.input.files(day))
    except NoFilesError:
        return []


def _has_rows(sources: Sequence[InputFile], holdout: float) -> bool:
    """True if the share ``holdout`` of the rows is at least _MIN_HELD_OUT. One line of a text may be a header."""
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
    except DlrmError:  # a damaged file is reported when its day is encoded
        return True
    return rows * holdout >= _MIN_HELD_OUT
