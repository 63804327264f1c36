"""Times of a sampled column: their unit, by their size, and times that cannot be right."""

import re

import numpy as np

from dlrm_app.errors import Problem
from dlrm_app.logs.parquet_columns import TIME, content_of, is_list
from dlrm_app.tools.checking.sample import MOMENT, SampledColumn, words_of
from dlrm_app.tools.checking.text_form import all_fit

_NAMES = re.compile(r"time|timestamp|ts|at|date|day|dt|hour|when|unix|epoch|created|updated|datetime")
_COMPACT = r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(([01]\d|2[0-3])([0-5]\d){0,2})?"
_UNITS = {"seconds": 10, "milliseconds": 13, "microseconds": 16, "nanoseconds": 19}
"""The digits of times from 2001 to 2033, by unit."""
_DAYS = {r"[12]\d{4}": "days since 1970", r"[345]\d{4}(\.\d+)?": "days of a spreadsheet"}
_WRONG_YEARS = {"1970-01-.*": "in January 1970", "(2[1-9]|[3-9]\\d)\\d\\d-.*": "beyond 2100"}


def is_moment_name(name: str) -> bool:
    """True if a word of ``name`` says that it is a time."""
    return any(map(_NAMES.fullmatch, words_of(name)))


def time_kind(column: SampledColumn) -> str | None:
    """The kind of the times of ``column``; None if it has others."""
    if is_list(column.stored):
        return None
    if content_of(column.stored) == TIME or column.fits(MOMENT):
        return "iso"
    if column.fits(_COMPACT) and len({*map(len, column.counts)}) == 1:
        return "iso"
    kind = next((unit for unit in _UNITS if column.fits(_pattern(unit))), None)
    if kind is None:
        return None
    codes, values = column.codes()
    moments = np.array([float(value) if value in column.counts else 0.0 for value in values])[
        codes[codes >= 0]
    ]
    is_in_order = len(column.counts) > 1 and bool((np.diff(moments) >= 0).all())
    return kind if is_in_order or is_moment_name(column.name) else None


def _pattern(unit: str) -> str:
    return rf"1\d{{{_UNITS[unit] - 1}}}(\.\d*)?"


def wrong_times(column: SampledColumn) -> str | None:
    """The reason why the times of ``column`` cannot be read; None if they can, or if it does not look like times."""
    if is_list(column.stored) or not column.counts:
        return None
    if content_of(column.stored) == TIME or column.fits(MOMENT):
        for pattern, when in _WRONG_YEARS.items():
            if column.fits(pattern):
                return f"times that all lie {when}: they were written in another unit; write them again"
    if is_moment_name(column.name):
        for pattern, what in _DAYS.items():
            if column.fits(pattern):
                return f"{what}, which no key reads; write dates such as 2026-11-23 for role: time, kind: iso"
    return None


def two_units(column: SampledColumn) -> Problem | None:
    """A problem of a column of times in more than one unit."""
    if is_list(column.stored) or not is_moment_name(column.name):
        return None
    rows = dict.fromkeys(_UNITS, 0)
    for value, count in column.counts.items():
        unit = next((unit for unit in _UNITS if all_fit(_pattern(unit), [value])), None)
        if unit is None:
            return None
        rows[unit] += count
    found = [f"{unit} in {number:,} rows" for unit, number in rows.items() if number]
    if len(found) < 2:
        return None
    return Problem(column.name, f"has times in {' and '.join(found)}", "write all of them in one unit")
