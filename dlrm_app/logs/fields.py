"""Compiled rules for one field of text: each returns a value and a state (present, absent or bad).

label    0, 1, 0.0, 1.0, true or false
other    a label that may be absent
weight   a number from 0 on, within the range of float32; never absent
integer  an optional sign and digits, within ±(2^63 - 1)
float    an optional sign, digits with an optional point, an optional exponent; within the range of float32
hex      1 to 8 hexadecimal digits, upper or lower case
string   UTF-8 without NUL
time     seconds or milliseconds since 1970, or ISO 8601 text, also YYYYMMDD[HH[MM[SS]]], or text in a
         format; within the years 1 to 9999
The *key* of a sparse value is its number for hex and integer columns (two's complement), FNV-1a of its bytes for
strings. An empty field is absent; null words are those of ``null_words``. Positions are those of the first byte and of
the byte after the last one.
"""

import numpy as np

from dlrm_app.kernels.compiled import njit, njit_uncounted
from dlrm_app.kernels.hashing import FNV_START, NO_KEY, add_byte, as_key
from dlrm_app.logs.formatted_times import NO_DAY, days_of, parse_formatted
from dlrm_app.logs.time_format import ROOM
from dlrm_app.logs.words import WORD, hex_of, load_field, padded

MISSING_KEY = NO_KEY
"""The key of a missing value. No value has it: integers exclude -2^63, and a string with this key gets the next one."""

IGNORE, LABEL, DENSE_INTEGER, DENSE_FLOAT, DENSE_SCORE, KEY_INTEGER, KEY_HEX, KEY_STRING = range(8)
TIME_SECONDS, TIME_MILLISECONDS, TIME_ISO = range(8, 11)
WEIGHT, TIME_FORMAT, OTHER_LABEL, ELEMENT_WEIGHT = range(11, 15)
"""Codes of a column's content."""

FIRST_TIME, LAST_TIME = -62_135_596_800.0, 253_402_300_799.0
"""The years 1 to 9999, in seconds since 1970."""

FORMAT, NULLS = 3, 3 + ROOM
"""The positions of the format of times, and of the null words, in a column's codes."""

PRESENT, ABSENT, BAD = range(3)

NEWLINE, CARRIAGE_RETURN = ord("\n"), ord("\r")
_PLUS, _MINUS, _POINT, _ZERO, _LOWER_E = ord("+"), ord("-"), ord("."), ord("0"), ord("e")
_COLON, _SPACE, _LOWER_T, _LOWER_Z = ord(":"), ord(" "), ord("t"), ord("z")
_MAX_FRACTION = 6  # digits: microseconds of the year 9999 fit into 63 bits
_TRUE, _FALSE = np.frombuffer(b"true", np.uint8), np.frombuffer(b"false", np.uint8)
FLOAT32_LIMIT = 3.4028235677973366e38  # from here on a float64 rounds to an infinite float32
_POWERS = np.array([float(f"1e{exponent}") for exponent in range(309)])
_MAX_INTEGER = np.uint64(2**63 - 1)
_MAX_EXPONENT = 1 << 24  # more than a line has digits
_MAX_MANTISSA = np.uint64(10**18)


@njit_uncounted
def parse_label(text, start, stop):  # type: ignore[no-untyped-def]  # compiled
    """Returns (0 or 1 as int64, present or bad). Words may be in upper or lower case."""
    if start == stop:
        return np.int64(0), BAD
    label = np.int64(text[start]) - _ZERO
    if label == 0 or label == 1:
        for at in range(start + 1, stop):
            if text[at] != (_POINT if at == start + 1 else _ZERO):
                return label, BAD
        return label, PRESENT
    label = np.int64(stop - start == len(_TRUE))
    word = _TRUE if label == 1 else _FALSE
    if stop - start != len(word):
        return label, BAD
    for place in range(len(word)):
        if (text[start + place] | 32) != word[place]:
            return label, BAD
    return label, PRESENT


@njit_uncounted
def is_null_word(text, start, stop, column):  # type: ignore[no-untyped-def]  # compiled
    """True if the field is one of the null words of ``column``, which are stored from NULLS on as (length, bytes)."""
    at = NULLS
    while at < len(column):
        length, place = column[at], 0
        while place < length and length == stop - start and text[start + place] == column[at + 1 + place]:
            place += 1
        if place == length:
            return True
        at += 1 + length
    return False


@njit_uncounted
def is_null(text, start, stop, column):  # type: ignore[no-untyped-def]  # compiled
    """True if the field, which no value of ``column`` has, is a null word, or a number that a null word is too."""
    kind = column[0]
    if kind in (LABEL, WEIGHT, ELEMENT_WEIGHT) or len(column) == NULLS:
        return False
    if is_null_word(text, start, stop, column):
        return True
    if kind in (KEY_HEX, KEY_STRING, TIME_ISO, TIME_FORMAT):
        return False
    value, state = _parse_float64(text, start, stop)
    at = NULLS
    while at < len(column) and state == PRESENT:
        word, state_of_word = _parse_float64(column, at + 1, at + 1 + column[at])
        if state_of_word == PRESENT and word == value and abs(word) < np.inf:
            return True
        at += 1 + column[at]
    return False


@njit(nogil=True, cache=True, inline="always")
def parse_hex(text, start, stop):  # type: ignore[no-untyped-def]  # compiled
    """Returns (a hex number as a key, its state)."""
    length = stop - start
    if length == 0:
        return MISSING_KEY, ABSENT
    if length > WORD:
        return MISSING_KEY, BAD
    number, is_hex = hex_of(padded(load_field(text, start, stop), length))
    return (number, PRESENT) if is_hex else (MISSING_KEY, BAD)


@njit_uncounted
def parse_integer(text, start, stop):  # type: ignore[no-untyped-def]  # compiled
    """Returns (an integer as int64, its state)."""
    if stop == start:
        return np.int64(0), ABSENT
    negative = text[start] == _MINUS
    first = start + 1 if negative or text[start] == _PLUS else start
    if first == stop:
        return np.int64(0), BAD
    value = np.uint64(0)
    for at in range(first, stop):
        digit = np.int64(text[at]) - _ZERO
        if digit < 0 or digit > 9:
            return np.int64(0), BAD
        if value > _MAX_INTEGER // np.uint64(10):
            return np.int64(0), BAD
        value = value * np.uint64(10) + np.uint64(digit)
        if value > _MAX_INTEGER:
            return np.int64(0), BAD
    number = np.int64(value)
    return -number if negative else number, PRESENT


@njit_uncounted
def parse_float(text, start, stop):  # type: ignore[no-untyped-def]  # compiled
    """Returns (a number within the range of float32, as float64 within two units in the last place; its state)."""
    value, state = _parse_float64(text, start, stop)
    if abs(value) >= FLOAT32_LIMIT:
        return np.nan, BAD
    return value, state


@njit_uncounted
def _parse_float64(text, start, stop):  # type: ignore[no-untyped-def]  # compiled
    if stop == start:
        return np.nan, ABSENT
    negative = text[start] == _MINUS
    at = start + 1 if negative or text[start] == _PLUS else start
    mantissa, exponent, num_digits, has_point = np.uint64(0), 0, 0, False
    while at < stop:
        digit = np.int64(text[at]) - _ZERO
        if 0 <= digit <= 9:
            num_digits += 1
            if mantissa < _MAX_MANTISSA:
                mantissa = mantissa * np.uint64(10) + np.uint64(digit)
                exponent -= has_point
            else:
                exponent += not has_point  # beyond 19 digits only the magnitude counts
        elif text[at] == _POINT and not has_point:
            has_point = True
        else:
            break
        at += 1
    if num_digits == 0:
        return np.nan, BAD
    if at < stop:
        written, state = parse_integer(text, at + 1, stop)
        if (text[at] | 32) != _LOWER_E or state != PRESENT:
            return np.nan, BAD
        exponent += min(max(written, -_MAX_EXPONENT), _MAX_EXPONENT)
    value = _scaled(np.float64(mantissa), exponent)
    return -value if negative else value, PRESENT


@njit_uncounted
def _scaled(mantissa, exponent):  # type: ignore[no-untyped-def]  # compiled
    if mantissa == 0.0:
        return 0.0
    if exponent >= 0:
        return mantissa * _POWERS[min(exponent, 308)]
    if exponent >= -308:
        return mantissa / _POWERS[-exponent]
    return mantissa / _POWERS[308] / _POWERS[min(-exponent - 308, 308)]


@njit_uncounted
def parse_format(text, start, stop, column):  # type: ignore[no-untyped-def]  # compiled
    """Returns (a time in the format of ``column``, its state). A null word is not a time, even if it reads like one."""
    if start == stop or is_null_word(text, start, stop, column):
        return np.nan, ABSENT
    value, is_time = parse_formatted(text, start, stop, column, FORMAT)
    is_good = is_time and FIRST_TIME <= value <= LAST_TIME
    return value if is_good else np.nan, PRESENT if is_good else BAD


@njit_uncounted
def parse_number(text, start, stop, kind):  # type: ignore[no-untyped-def]  # compiled
    """Returns (a label, weight, dense value or time (seconds since 1970) as float64; its state)."""
    if kind == LABEL:
        label, state = parse_label(text, start, stop)
        return np.float64(label), state
    if kind == DENSE_INTEGER:
        number, state = parse_integer(text, start, stop)
        return np.float64(number) if state == PRESENT else np.nan, state
    if kind in (WEIGHT, ELEMENT_WEIGHT):
        value, state = parse_float(text, start, stop)
        return value, PRESENT if state == PRESENT and value >= 0.0 else BAD
    if kind == OTHER_LABEL:
        if start == stop:
            return np.nan, ABSENT
        label, state = parse_label(text, start, stop)
        return np.float64(label), state
    if kind >= TIME_SECONDS:
        return _parse_time(text, start, stop, kind)
    value, state = parse_float(text, start, stop)
    if kind == DENSE_SCORE and state == PRESENT and not 0.0 <= value <= 1.0:
        return value, BAD
    return value, state


@njit_uncounted
def parse_key(text, start, stop, kind, doubled):  # type: ignore[no-untyped-def]  # compiled
    """Returns (the key of a sparse value, or the bits of an element's weight; its state).

    ``doubled``: a byte that is written twice in strings.
    """
    if kind == KEY_HEX:
        return parse_hex(text, start, stop)
    if kind == KEY_STRING:
        return parse_string(text, start, stop, doubled)
    if kind == ELEMENT_WEIGHT:
        weight, state = parse_number(text, start, stop, kind)
        return np.float64(weight + 0.0).view(np.uint64), state  # -0.0 has the bits of MISSING_KEY
    number, state = parse_integer(text, start, stop)
    return np.uint64(number) if state == PRESENT else MISSING_KEY, state


@njit_uncounted
def _parse_time(text, start, stop, kind):  # type: ignore[no-untyped-def]  # compiled
    if start == stop:
        return np.nan, ABSENT
    if kind == TIME_ISO:
        value, state = _parse_iso(text, start, stop)
    else:
        value, state = parse_float(text, start, stop)
        value = value / 1000.0 if kind == TIME_MILLISECONDS else value
    if state == BAD or value < FIRST_TIME or value > LAST_TIME:
        return np.nan, BAD
    return value, PRESENT


@njit_uncounted
def _parse_iso(text, start, stop):  # type: ignore[no-untyped-def]  # compiled
    """Parses YYYY-MM-DD, optionally with T or a space, HH:MM[:SS[.fraction]],
    and Z or an offset; or YYYYMMDD[HH[MM[SS]]].

    The default is UTC.
    """
    if _digits(text, start, stop, 8) >= 0:
        return _parse_compact(text, start, stop)
    days = _days_since_1970(text, start, start + 5, start + 8, stop)
    if days == NO_DAY or text[start + 4] != _MINUS or text[start + 7] != _MINUS:
        return np.nan, BAD
    at, seconds, scale, offset = start + 10, 86400 * days, np.int64(1), 0
    if at < stop:
        hour, minute = _digits(text, at + 1, stop, 2), _digits(text, at + 4, stop, 2)
        is_fine = (text[at] | 32) == _LOWER_T or text[at] == _SPACE
        if not (is_fine and 0 <= hour <= 23 and 0 <= minute <= 59 and text[at + 3] == _COLON):
            return np.nan, BAD
        at, seconds = at + 6, seconds + 3600 * hour + 60 * minute
        if at < stop and text[at] == _COLON:
            second = _digits(text, at + 1, stop, 2)
            if not 0 <= second <= 59:
                return np.nan, BAD
            at, seconds = at + 3, seconds + second
            if at + 1 < stop and text[at] == _POINT and _digits(text, at + 1, stop, 1) >= 0:
                at += 1
                while at < stop and _digits(text, at, stop, 1) >= 0:
                    if scale < 10**_MAX_FRACTION:
                        seconds, scale = 10 * seconds + _digits(text, at, stop, 1), 10 * scale
                    at += 1
        if at < stop:
            offset = _parse_offset(text, at, stop)
            if offset == _NO_OFFSET:
                return np.nan, BAD
    return np.float64(seconds - scale * offset) / np.float64(scale), PRESENT


@njit_uncounted
def _days_since_1970(text, year_at, month_at, day_at, stop):  # type: ignore[no-untyped-def]  # compiled
    """The days since 1970 of the date whose year, month and day begin at these places; NO_DAY if it is invalid."""
    year, month = _digits(text, year_at, stop, 4), _digits(text, month_at, stop, 2)
    return days_of(year, month, _digits(text, day_at, stop, 2))


@njit_uncounted
def _parse_compact(text, start, stop):  # type: ignore[no-untyped-def]  # compiled
    """Parses YYYYMMDD, optionally with HH, HHMM or HHMMSS, in UTC."""
    days = _days_since_1970(text, start, start + 4, start + 6, stop)
    seconds, unit = 86400 * days, 3600
    for at in range(start + 8, min(stop, start + 14), 2):
        part = _digits(text, at, stop, 2)
        if not 0 <= part <= (23 if unit == 3600 else 59):
            return np.nan, BAD
        seconds, unit = seconds + unit * part, unit // 60
    if days == NO_DAY or stop > start + 14:
        return np.nan, BAD
    return np.float64(seconds), PRESENT


_NO_OFFSET = 1 << 30


@njit_uncounted
def _parse_offset(text, at, stop):  # type: ignore[no-untyped-def]  # compiled
    """The offset Z, +HH:MM, +HHMM or +HH (or with -) in seconds; otherwise _NO_OFFSET."""
    if (text[at] | 32) == _LOWER_Z and at + 1 == stop:
        return 0
    hours, rest = _digits(text, at + 1, stop, 2), at + 3
    rest += rest < stop and text[rest] == _COLON
    minutes = _digits(text, rest, stop, 2) if stop > at + 3 else 0
    is_whole = stop == at + 3 or rest + 2 == stop
    is_signed = text[at] == _PLUS or text[at] == _MINUS
    if not (is_whole and is_signed and 0 <= hours <= 23 and 0 <= minutes <= 59):
        return _NO_OFFSET
    return (3600 * hours + 60 * minutes) * (-1 if text[at] == _MINUS else 1)


@njit_uncounted
def _digits(text, at, stop, count):  # type: ignore[no-untyped-def]  # compiled
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


@njit_uncounted
def parse_string(text, start, stop, doubled):  # type: ignore[no-untyped-def]  # compiled
    """Returns (the key of a string: FNV-1a of its bytes; its state). ``doubled``: a byte that is written twice."""
    if stop == start:
        return MISSING_KEY, ABSENT
    key, is_ascii, at = FNV_START, True, start
    while at < stop:
        byte = text[at]
        if byte == 0:
            return MISSING_KEY, BAD
        is_ascii = is_ascii and byte < 128
        key = add_byte(key, byte)
        at += 2 if byte == doubled else 1
    if not is_ascii and not _is_utf8(text, start, stop):
        return MISSING_KEY, BAD
    return as_key(key), PRESENT


@njit_uncounted
def _is_utf8(text, start, stop):  # type: ignore[no-untyped-def]  # compiled
    """Checks UTF-8 by Unicode 15, table 3-7: no overlong forms, no surrogates, nothing above U+10FFFF."""
    at = start
    while at < stop:
        lead = np.int64(text[at])
        low, high, more = 0x80, 0xBF, 0
        if lead < 0x80:
            at += 1
            continue
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            low = 0xA0 if lead == 0xE0 else low
            high = 0x9F if lead == 0xED else high
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            low = 0x90 if lead == 0xF0 else low
            high = 0x8F if lead == 0xF4 else high
        if more == 0 or at + more >= stop:
            return False
        for offset in range(1, more + 1):
            byte = np.int64(text[at + offset])
            if byte < low or byte > high:
                return False
            low, high = 0x80, 0xBF
        at += more + 1
    return True
