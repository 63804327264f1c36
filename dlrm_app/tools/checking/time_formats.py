"""Formats of times other than ISO 8601: a table, and which of it reads all values of a column."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from dlrm_app.logs.fields import FORMAT, parse_format
from dlrm_app.logs.strings import PRESENT
from dlrm_app.logs.time_format import ROOM, compile_format
from dlrm_app.tools.checking.text_form import all_fit

_NUMBERS = ("%d.%m.%Y", "%m.%d.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d")
_SHORT_YEARS = ("%d.%m.%y", "%m.%d.%y", "%d/%m/%y", "%m/%d/%y", "%y/%m/%d", "%d-%m-%y", "%m-%d-%y")
"""Formats that version numbers fit too: for columns whose names say a time."""
_NAMES = ("%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%d/%b/%Y", "%b %d, %Y", "%b %d %Y")
_CLOCKS = (
    "%H:%M:%S",
    "%H:%M",
    "%H:%M:%S.%f",
    "%H:%M:%S,%f",
    "%I:%M:%S %p",
    "%I:%M %p",
    "%I.%M.%S.%f %p",
    "%H",
)
_ZONES = ("", " %z", "%z")
_WHOLE = (
    "%d/%b/%Y:%H:%M:%S %z",
    "[%d/%b/%Y:%H:%M:%S %z]",
    *(f"%Y-%m-%d{mark}{clock}{zone}" for mark in " T" for clock in _CLOCKS for zone in _ZONES),
    *(f"%Y%m%d{mark}%H{colon}%M{colon}%S" for mark in " T" for colon in (":", "")),
)
_LIKE_TIMES = r"\[?\d.*\d.*\d.*|[a-z]{3} \d.*\d.*"
_FIRST = 64
"""The number of values by which formats are chosen, before all values are read."""
_DAY_NAME = r"(mon|tue|wed|thu|fri|sat|sun)[a-z]*,?[ \t].*\d.*"
_MONTHS = "january|february|march|april|june|july|august|september|october|november|december"
_UNREAD = rf"{_DAY_NAME}|\d{{1,2}}\.? ({_MONTHS}),? \d{{4}}.*|({_MONTHS}|may) \d{{1,2}},? \d{{4}}.*"


@lru_cache(maxsize=2)
def _formats(is_named: bool) -> Mapping[str, NDArray[np.int64]]:
    """Format → the codes of a column that has it."""
    return {form: _codes(form) for form in _listed(is_named)}


def _codes(form: str) -> NDArray[np.int64]:
    codes = compile_format(form)
    return np.array([0] * FORMAT + codes + [0] * (ROOM - len(codes)), np.int64)


def _listed(is_named: bool) -> Iterator[str]:
    yield from _WHOLE
    for date in (*_NUMBERS, *_NAMES, *_SHORT_YEARS * is_named):
        yield date
        for clock in _CLOCKS:
            yield from (f"{date}{between}{clock}{zone}" for between in (" ", ", ") for zone in _ZONES)


def formats_of(values: Iterable[str], is_named: bool) -> list[str]:
    """The formats that read all ``values``. ``is_named``: the name of their column says that they are times."""
    texts = [*values]
    if not all_fit(_LIKE_TIMES, texts[:_FIRST]):
        return []
    found = {form: codes for form, codes in _formats(is_named).items() if _reads(codes, texts[:_FIRST])}
    return [form for form, codes in found.items() if _reads(codes, texts)]


def unread_times(values: Iterable[str]) -> bool:
    """True for times with names of days, or names of months that are not cut, which no format reads."""
    return all_fit(_UNREAD, values)


def _reads(codes: NDArray[np.int64], texts: Iterable[str]) -> bool:
    return all(map(partial(_is_time, codes=codes), texts))


def _is_time(text: str, codes: NDArray[np.int64]) -> bool:
    encoded = np.frombuffer(text.encode(), np.uint8)
    return bool(parse_format(encoded, 0, len(encoded), codes)[1] == PRESENT)


def has_clock(form: str) -> bool:
    """True if ``form`` has an hour."""
    return re.search("%[HI]", form) is not None
