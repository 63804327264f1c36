"""Parses times of ISO 8601, in UTC unless they name an offset. Compiled."""

import numpy as np

from dlrm_app.kernels.compiled import njit_uncounted
from dlrm_app.logs.formatted_times import NO_DAY, days_of

_PLUS, _MINUS, _POINT, _ZERO = ord("+"), ord("-"), ord("."), ord("0")
_COLON, _SPACE, _LOWER_T, _LOWER_Z = ord(":"), ord(" "), ord("t"), ord("z")
_UTC, _GMT = np.frombuffer(b"utc", np.uint8), np.frombuffer(b"gmt", np.uint8)
_MAX_FRACTION = 6  # digits: microseconds of the year 9999 fit into 63 bits


@njit_uncounted
def parse_iso(text, start, stop):  # type: ignore[no-untyped-def]  # compiled
    """Returns (seconds since 1970, True) of ``moment_of``'s text or of YYYYMMDD[HH[MM[SS]]]; the default is UTC."""
    if digits(text, start, stop, 8) >= 0:
        return _parse_compact(text, start, stop)
    seconds, at, behind, is_time = moment_of(text, start, stop)
    if not is_time:
        return np.nan, False
    scale = np.int64(1)
    for place in range(at, min(behind, at + _MAX_FRACTION)):
        seconds, scale = 10 * seconds + np.int64(text[place]) - _ZERO, 10 * scale
    return np.float64(seconds) / np.float64(scale), True


@njit_uncounted
def moment_of(text, start, stop):  # type: ignore[no-untyped-def]  # compiled
    """Parses YYYY-MM-DD, optionally with T or a space, HH:MM[:SS[.fraction]], and Z, UTC or an offset.

    Returns (whole seconds since 1970 in UTC, the place of the fraction's digits, the place after them, True if it is a
    time).
    """
    days = _days_since_1970(text, start, start + 5, start + 8, stop)
    if days == NO_DAY or text[start + 4] != _MINUS or text[start + 7] != _MINUS:
        return np.int64(0), stop, stop, False
    at, seconds, fraction, behind = start + 10, 86400 * days, stop, stop
    if at < stop:
        hour, minute = digits(text, at + 1, stop, 2), digits(text, at + 4, stop, 2)
        is_fine = (text[at] | 32) == _LOWER_T or text[at] == _SPACE
        if not (is_fine and 0 <= hour <= 23 and 0 <= minute <= 59 and text[at + 3] == _COLON):
            return np.int64(0), stop, stop, False
        at, seconds = at + 6, seconds + 3600 * hour + 60 * minute
        if at < stop and text[at] == _COLON:
            second = digits(text, at + 1, stop, 2)
            if not 0 <= second <= 59:
                return np.int64(0), stop, stop, False
            at, seconds = at + 3, seconds + second
            if at + 1 < stop and text[at] == _POINT and digits(text, at + 1, stop, 1) >= 0:
                fraction = at = at + 1
                while at < stop and digits(text, at, stop, 1) >= 0:
                    at += 1
                behind = at
        if at < stop:
            offset = _parse_offset(text, at, stop)
            if offset == _NO_OFFSET:
                return np.int64(0), stop, stop, False
            seconds -= offset
    return seconds, fraction, behind, True


@njit_uncounted
def _days_since_1970(text, year_at, month_at, day_at, stop):  # type: ignore[no-untyped-def]  # compiled
    """The days since 1970 of the date whose year, month and day begin at these places; NO_DAY if it is invalid."""
    year, month = digits(text, year_at, stop, 4), digits(text, month_at, stop, 2)
    return days_of(year, month, digits(text, day_at, stop, 2))


@njit_uncounted
def _parse_compact(text, start, stop):  # type: ignore[no-untyped-def]  # compiled
    """Parses YYYYMMDD, optionally with HH, HHMM or HHMMSS, in UTC."""
    days = _days_since_1970(text, start, start + 4, start + 6, stop)
    seconds, unit = 86400 * days, 3600
    for at in range(start + 8, min(stop, start + 14), 2):
        part = digits(text, at, stop, 2)
        if not 0 <= part <= (23 if unit == 3600 else 59):
            return np.nan, False
        seconds, unit = seconds + unit * part, unit // 60
    if days == NO_DAY or stop > start + 14:
        return np.nan, False
    return np.float64(seconds), True


_NO_OFFSET = 1 << 30


@njit_uncounted
def _parse_offset(text, at, stop):  # type: ignore[no-untyped-def]  # compiled
    """The offset Z, UTC, GMT, +HH:MM, +HHMM or +HH (or with -), also behind a space, in seconds; otherwise _NO_OFFSET."""
    at += at + 1 < stop and text[at] == _SPACE
    if at + 1 == stop and (text[at] | 32) == _LOWER_Z:
        return 0
    if at + 3 == stop and (is_word(text, at, _UTC) or is_word(text, at, _GMT)):
        return 0
    hours, rest = digits(text, at + 1, stop, 2), at + 3
    rest += rest < stop and text[rest] == _COLON
    minutes = digits(text, rest, stop, 2) if stop > at + 3 else 0
    is_whole = stop == at + 3 or rest + 2 == stop
    is_signed = text[at] == _PLUS or text[at] == _MINUS
    if not (is_whole and is_signed and 0 <= hours <= 23 and 0 <= minutes <= 59):
        return _NO_OFFSET
    return (3600 * hours + 60 * minutes) * (-1 if text[at] == _MINUS else 1)


@njit_uncounted
def is_word(text, at, word):  # type: ignore[no-untyped-def]  # compiled
    """True if the text has the letters of ``word``, of small letters, in any case."""
    for place in range(len(word)):  # noqa: SIM110  # numba compiles no generators
        if (text[at + place] | 32) != word[place]:
            return False
    return True


@njit_uncounted
def digits(text, at, stop, count):  # type: ignore[no-untyped-def]  # compiled
    """The number written by ``count`` digits; -1 if they are not all digits."""
    if at + count > stop:
        return np.int64(-1)
    number = np.int64(0)
    for place in range(at, at + count):
        digit = np.int64(text[place]) - _ZERO
        if digit < 0 or digit > 9:
            return np.int64(-1)
        number = 10 * number + digit
    return number
