"""Parses times by the codes of their format (``time_format``), and finds the days of dates."""
# mypy: disable-error-code=assignment
# numba unites the types of whole numbers

import numpy as np

from dlrm_app.kernels.compiled import njit_uncounted
from dlrm_app.logs.time_format import (
    DAY,
    FRACTION,
    HALF,
    HALF_HOUR,
    HOUR,
    MINUTE,
    MONTH,
    NAME,
    ROOM,
    SECOND,
    SHORT_YEAR,
    YEAR,
    ZONE,
)

NO_DAY = 1 << 30
_ZERO, _PLUS, _MINUS, _COLON, _LOWER_A, _LOWER_P, _LOWER_M, _LOWER_Z = (ord(mark) for mark in "0+-:apmz")
_NAMES = np.frombuffer(b"janfebmaraprmayjunjulaugsepoctnovdec", np.uint8)
_MOST_DIGITS = 9


@njit_uncounted
def parse_formatted(text, start, stop, column, first):  # type: ignore[no-untyped-def]  # compiled
    """Returns (seconds since 1970, True) of text[start:stop], whose format is in ``column`` from ``first`` on."""
    year, month, day, hour, half, minute, second, offset = -1, -1, -1, 0, 0, 0, 0, 0
    fraction, at = 0.0, start
    for place in range(first, first + ROOM):
        code = column[place]
        if code == 0:
            break
        number, behind = np.int64(-1), at
        if code > 0:
            if at < stop and text[at] == code:
                number, behind = 0, at + 1
        elif -code == NAME:
            number, behind = _month(text, at, stop), at + 3
            month = number
        elif -code == HALF:
            if at + 2 <= stop and (text[at + 1] | 32) == _LOWER_M:
                if (text[at] | 32) == _LOWER_A:
                    number = 0
                elif (text[at] | 32) == _LOWER_P:
                    number = 12
            half, behind = number, at + 2
        elif -code == ZONE:
            offset, behind = _zone(text, at, stop)
            number = 0 if behind > at else -1
        else:
            most = 4 if -code == YEAR else _MOST_DIGITS if -code == FRACTION else 2
            number, behind = _number(text, at, stop, most)
            if -code == YEAR:
                year = number if behind == at + 4 else -1
            elif -code == SHORT_YEAR:
                year = number + (2000 if number < 69 else 1900)
                number = number if behind == at + 2 else -1
            elif -code == MONTH:
                month = number
            elif -code == DAY:
                day = number
            elif -code == HOUR:
                hour = number
            elif -code == HALF_HOUR:
                hour = number % 12
                number = number if 1 <= number <= 12 else -1
            elif -code == MINUTE:
                minute = number
            elif -code == SECOND:
                second = number
            else:
                fraction = number / 10.0 ** (behind - at)
                while behind < stop and _ZERO <= text[behind] <= _ZERO + 9:  # finer than a double is
                    behind += 1
        if number < 0:
            return np.nan, False
        at = behind
    days = days_of(year, month, day)
    if at != stop or days == NO_DAY or hour > 23 or minute > 59 or second > 59:
        return np.nan, False
    return np.float64(86400 * days + 3600 * (hour + half) + 60 * minute + second - offset) + fraction, True


@njit_uncounted
def days_of(year, month, day):  # type: ignore[no-untyped-def]  # compiled
    """The days from 1970 to a date of the Gregorian calendar; NO_DAY if it is invalid."""
    is_leap = (year % 4 == 0 and year % 100 != 0) or year % 400 == 0
    short = 3 - is_leap if month == 2 else np.int64(month == 4 or month == 6 or month == 9 or month == 11)
    if year < 1 or not 1 <= month <= 12 or not 1 <= day <= 31 - short:
        return np.int64(NO_DAY)
    # years from March on (Hinnant, "chrono-compatible date algorithms")
    shifted = year - (month <= 2)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return 365 * shifted + shifted // 4 - shifted // 100 + shifted // 400 + day_of_year - 719468


@njit_uncounted
def _number(text, at, stop, most):  # type: ignore[no-untyped-def]  # compiled
    """(the number of up to ``most`` digits, the place after them); -1 if there is no digit."""
    number, behind = np.int64(0), at
    while behind < stop and behind < at + most and _ZERO <= text[behind] <= _ZERO + 9:
        number = 10 * number + np.int64(text[behind]) - _ZERO
        behind += 1
    return number if behind > at else np.int64(-1), behind


@njit_uncounted
def _month(text, at, stop):  # type: ignore[no-untyped-def]  # compiled
    """The month with this English name of three letters; -1 if there is none."""
    for month in range(12):
        place = 0
        while place < 3 and at + place < stop and (text[at + place] | 32) == _NAMES[3 * month + place]:
            place += 1
        if place == 3:
            return np.int64(month + 1)
    return np.int64(-1)


@njit_uncounted
def _zone(text, at, stop):  # type: ignore[no-untyped-def]  # compiled
    """(seconds that Z, +HH:MM or +HHMM is ahead of UTC, the place after it); that place is ``at`` without a zone."""
    if at < stop and (text[at] | 32) == _LOWER_Z:
        return 0, at + 1
    if at >= stop or (text[at] != _PLUS and text[at] != _MINUS):
        return 0, at
    hours, behind = _number(text, at + 1, stop, 2)
    whole = behind == at + 3
    behind += np.int64(behind < stop and text[behind] == _COLON)
    minutes, end = _number(text, behind, stop, 2)
    if not whole or end != behind + 2 or hours > 23 or minutes > 59:
        return 0, at
    return (3600 * hours + 60 * minutes) * (-1 if text[at] == _MINUS else 1), end
