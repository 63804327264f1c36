"""Compiled rules for one field of text: each returns a value and a state (present, absent or bad).

label    0, 1, 0.0, 1.0, true or false
other    a label that may be absent
weight   0, or a number from float32's smallest normal one to its greatest; never absent
integer  an optional sign and digits, within ±(2^63 - 1); also as a float's text, 1015.0, within ±2^53
vector   each of its numbers is a float that is present
float    an optional sign, digits with an optional point, an optional exponent; within the range of float32
hex      1 to 8 hexadecimal digits, upper or lower case
string   UTF-8 without NUL, see ``strings``; whole ones have no fraction
time     seconds, or thousandths and so on, since 1970, or ISO 8601 text, also YYYYMMDD[HH[MM[SS]]], or text in a
         format; within the years 1 to 9999
The *key* of a sparse value is its number for hex and integer columns (two's complement), FNV-1a of its bytes for
strings. Numbers and times, except formatted ones, are read without their outer blanks. An empty field is absent; null
words are those of ``null_words``. Positions are those of the first byte and of the byte after the last one.
"""

import numpy as np

from dlrm_app.kernels.compiled import njit, njit_uncounted
from dlrm_app.logs.formatted_times import parse_formatted
from dlrm_app.logs.iso_times import parse_iso
from dlrm_app.logs.strings import (
    ABSENT,
    BAD,
    FALSE,
    MISSING_KEY,
    PRESENT,
    TRUE,
    WHOLE,
    parse_string,
    parse_whole_string,
    whole_number,
)
from dlrm_app.logs.time_format import ROOM
from dlrm_app.logs.words import WORD, hex_of, load_field, padded

IGNORE, LABEL, DENSE_INTEGER, DENSE_FLOAT, DENSE_SCORE, KEY_INTEGER, KEY_HEX, KEY_STRING, KEY_WHOLE = range(9)
TIME_SECONDS, TIME_MILLISECONDS, TIME_MICROSECONDS, TIME_NANOSECONDS, TIME_ISO = range(9, 14)
WEIGHT, TIME_FORMAT, OTHER_LABEL, ELEMENT_WEIGHT, VECTOR = range(14, 19)
"""Codes of a column's content."""

UNITS = np.array([1.0, 1e3, 1e6, 1e9])
"""The units of time in a second, by code from TIME_SECONDS on."""

FIRST_TIME, LAST_TIME = -62_135_596_800.0, 253_402_300_799.0
"""The years 1 to 9999, in seconds since 1970."""

FORMAT, NULLS = 3, 3 + ROOM
"""The positions of the format of times, and of the null words, in a column's codes."""

NEWLINE, CARRIAGE_RETURN, BLANK, _TAB = (ord(mark) for mark in "\n\r \t")
_PLUS, _MINUS, _POINT, _ZERO, _LOWER_E = ord("+"), ord("-"), ord("."), ord("0"), ord("e")
FLOAT32_LIMIT = 3.4028235677973366e38  # from here on a float64 rounds to an infinite float32
LEAST_WEIGHT = 1.1754943508222875e-38
"""float32's smallest normal number: what is smaller becomes 0 in training."""
_POWERS = np.array([float(f"1e{exponent}") for exponent in range(309)])
_MAX_INTEGER = np.uint64(2**63 - 1)
_MAX_EXPONENT = 1 << 24  # more than a line has digits
_MAX_MANTISSA = np.uint64(10**18)


@njit_uncounted
def is_blank(byte):  # type: ignore[no-untyped-def]  # compiled
    """True for blanks, and for tabs and line breaks, which are others."""
    return byte in (BLANK, _TAB, NEWLINE, CARRIAGE_RETURN)


@njit_uncounted
def trimmed(text, begin, behind):  # type: ignore[no-untyped-def]  # compiled
    """The bounds of a text without its outer blanks."""
    while begin < behind and is_blank(text[begin]):
        begin += 1
    while begin < behind and is_blank(text[behind - 1]):
        behind -= 1
    return begin, behind


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
    label = np.int64(stop - start == len(TRUE))
    word = TRUE if label == 1 else FALSE
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
    """True if the field, which is not a value of ``column``, is a null word, or a number that equals one."""
    kind = column[0]
    if kind in (LABEL, WEIGHT, ELEMENT_WEIGHT, VECTOR) or len(column) == NULLS:
        return False
    if kind not in (KEY_HEX, KEY_STRING, KEY_WHOLE, TIME_FORMAT):
        start, stop = trimmed(text, start, stop)
    if is_null_word(text, start, stop, column):
        return True
    if kind in (KEY_HEX, KEY_STRING, KEY_WHOLE, TIME_ISO, TIME_FORMAT):
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
def parse_whole(text, start, stop):  # type: ignore[no-untyped-def]  # compiled
    """``parse_integer``, which reads whole floats too: 1015.0."""
    number, state = parse_integer(text, start, stop)
    if state != BAD:
        return number, state
    form, first, behind = whole_number(text, start, stop)
    return parse_integer(text, first, behind) if form == WHOLE else (number, state)


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
    """Returns (a label, weight, dense value or time (seconds since 1970) as float64; its state). Trims blanks."""
    start, stop = trimmed(text, start, stop)
    if kind == LABEL:
        label, state = parse_label(text, start, stop)
        return np.float64(label), state
    if kind == DENSE_INTEGER:
        number, state = parse_whole(text, start, stop)
        return np.float64(number) if state == PRESENT else np.nan, state
    if kind in (WEIGHT, ELEMENT_WEIGHT):
        value, state = parse_float(text, start, stop)
        is_good = state == PRESENT and (value == 0.0 or value >= LEAST_WEIGHT)
        return value, PRESENT if is_good else BAD
    if kind == OTHER_LABEL:
        if start == stop:
            return np.nan, ABSENT
        label, state = parse_label(text, start, stop)
        return np.float64(label), state
    if kind == VECTOR:
        return parse_float(text, start, stop)
    if kind >= TIME_SECONDS:
        return _parse_time(text, start, stop, kind)
    value, state = parse_float(text, start, stop)
    if kind == DENSE_SCORE and state == PRESENT and not 0.0 <= value <= 1.0:
        return value, BAD
    return value, state


@njit_uncounted
def parse_key(text, start, stop, kind, doubled):  # type: ignore[no-untyped-def]  # compiled
    """Returns (the key of a sparse value, or the bits of an element's weight or of a vector's number; its state).

    ``doubled``: a byte that is written twice in strings.
    """
    if kind == KEY_HEX:
        return parse_hex(text, start, stop)
    if kind == KEY_STRING:
        return parse_string(text, start, stop, doubled)
    if kind == KEY_WHOLE:
        return parse_whole_string(text, start, stop, doubled)
    if kind in (ELEMENT_WEIGHT, VECTOR):
        number, state = parse_number(text, start, stop, kind)
        return np.float64(number + 0.0).view(np.uint64), state  # -0.0 has the bits of MISSING_KEY
    start, stop = trimmed(text, start, stop)
    whole, state = parse_whole(text, start, stop)
    return np.uint64(whole) if state == PRESENT else MISSING_KEY, state


@njit_uncounted
def _parse_time(text, start, stop, kind):  # type: ignore[no-untyped-def]  # compiled
    if start == stop:
        return np.nan, ABSENT
    if kind == TIME_ISO:
        value, is_time = parse_iso(text, start, stop)
        state = PRESENT if is_time else BAD
    else:
        value, state = parse_float(text, start, stop)
        value = value / UNITS[kind - TIME_SECONDS]
    if state == BAD or value < FIRST_TIME or value > LAST_TIME:
        return np.nan, BAD
    return value, PRESENT
