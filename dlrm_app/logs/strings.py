"""Compiled rules for strings: the notations of one value have one key, that of the text which Parquet's value has.

true and false   in any case: the key of ``true`` or ``false``
a date and time  as of ISO 8601, in UTC: ``2026-11-23 17:09:08.25``, without a fraction of zeros; midnight is its date
whole numbers    of columns with ``whole``: a float's text without its zeros, ``1015.0``, is ``1015``

Other texts are values of their own. Vocabularies keep the text that has the key (``canonical_texts``).
"""

import numpy as np
from numpy.typing import NDArray

from dlrm_app.kernels.compiled import njit, njit_uncounted
from dlrm_app.kernels.hashing import FNV_START, NO_KEY, add_byte, as_key
from dlrm_app.logs.escapes import byte_of, character_at
from dlrm_app.logs.iso_times import is_word, moment_of

MISSING_KEY = NO_KEY
"""The key of a missing value. No value has it: integers exclude -2^63, and a string with this key gets the next one."""

PRESENT, ABSENT, BAD = range(3)
"""States of a field."""
NO_NUMBER, WHOLE, FRACTION = range(3)
"""Forms of ``whole_number``."""

_PLUS, _MINUS, _POINT, _ZERO, _LOWER_E = (ord(mark) for mark in "+-.0e")
TRUE, FALSE = np.frombuffer(b"true", np.uint8), np.frombuffer(b"false", np.uint8)
_MOMENT = np.frombuffer(b"0000-00-00 00:00:00", np.uint8)
_DATE, _CLOCK = 10, 19
"""The lengths of a date, and of a date and time in seconds."""
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
"""The years 1 to 9999."""
_MAX_DIGITS, _EXACT = 16, 2**53
"""Floats from 2^53 on stand for several whole numbers."""


@njit_uncounted
def parse_string(text, start, stop, doubled):  # type: ignore[no-untyped-def]  # compiled
    """Returns (the key of a string: FNV-1a of its bytes; its state). ``doubled``: a byte that is written twice."""
    length = stop - start
    if length == 0:
        return MISSING_KEY, ABSENT
    if length == len(TRUE) or length == len(FALSE):
        word = TRUE if length == len(TRUE) else FALSE
        if is_word(text, start, word):
            return _key_of_flag(word), PRESENT
    elif length > _DATE + 5 and text[start + 4] == _MINUS and text[start + 7] == _MINUS:
        seconds, first, behind, is_time = _moment(text, start, stop)
        if is_time:
            return _key_of_moment(seconds, text, first, behind), PRESENT
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
def parse_escaped(text, start, stop, doubled):  # type: ignore[no-untyped-def]  # compiled
    """``parse_string`` of a text with escapes: the key of the text that they mean."""
    key, at = FNV_START, start
    while at < stop:
        code, size, at = character_at(text, at, stop, doubled)
        if code == 0:
            return MISSING_KEY, BAD
        for place in range(size):
            key = add_byte(key, byte_of(code, size, place))
    return (as_key(key), PRESENT) if _is_utf8(text, start, stop) else (MISSING_KEY, BAD)


@njit_uncounted
def parse_whole_string(text, start, stop, doubled):  # type: ignore[no-untyped-def]  # compiled
    """``parse_string`` of a column with ``whole``: numbers with a fraction, or too large for a float, are bad."""
    form, first, behind = whole_number(text, start, stop)
    if form == FRACTION:
        return MISSING_KEY, BAD
    return parse_string(text, first, behind, -1 if form == WHOLE else doubled)


@njit_uncounted
def whole_number(text, start, stop):  # type: ignore[no-untyped-def]  # compiled
    """Returns (form of a text, the place of a whole float's first character without its zeros, the place after it).

    WHOLE: a float's text of a whole number within ±2^53, such as 1015.0. FRACTION: another number with a point or an
    exponent. NO_NUMBER: a text that is neither, such as 1015.
    """
    negative = start < stop and text[start] == _MINUS
    first = start + 1 if negative or (start < stop and text[start] == _PLUS) else start
    at = first
    while at < stop and _ZERO <= text[at] <= _ZERO + 9:
        at += 1
    point, is_whole = at, at > first
    if at < stop and text[at] == _POINT:
        at += 1
        while at < stop and _ZERO <= text[at] <= _ZERO + 9:
            is_whole = is_whole and text[at] == _ZERO
            at += 1
    num_digits = at - first - (at > point)
    if num_digits > 0 and at + 1 < stop and (text[at] | 32) == _LOWER_E:
        at += 2 if text[at + 1] == _MINUS or text[at + 1] == _PLUS else 1
        power = at
        while at < stop and _ZERO <= text[at] <= _ZERO + 9:
            at += 1
        return FRACTION if at == stop and at > power else NO_NUMBER, start, stop
    if num_digits == 0 or at < stop or at == point:
        return NO_NUMBER, start, stop
    begin = first
    while begin < point - 1 and text[begin] == _ZERO:
        begin += 1
    value = np.int64(0)
    for place in range(begin, min(point, begin + _MAX_DIGITS)):
        value = 10 * value + np.int64(text[place]) - _ZERO
    is_signed = negative and value > 0
    if not is_whole or point - begin > _MAX_DIGITS or value >= _EXACT or (is_signed and begin > first):
        return FRACTION, start, stop
    return WHOLE, begin - is_signed, point


@njit_uncounted
def _key_of_flag(word):  # type: ignore[no-untyped-def]  # compiled
    key = FNV_START
    for byte in word:
        key = add_byte(key, byte)
    return key


@njit_uncounted
def _moment(text, start, stop):  # type: ignore[no-untyped-def]  # compiled
    """``moment_of`` within the years 1 to 9999, without the zeros at the end of the fraction."""
    seconds, first, behind, is_time = moment_of(text, start, stop)
    while behind > first and text[behind - 1] == _ZERO:
        behind -= 1
    return seconds, first, behind, is_time and _FIRST_SECOND <= seconds <= _LAST_SECOND


@njit_uncounted
def _digits_of_moment(seconds):  # type: ignore[no-untyped-def]  # compiled
    """The number YYYYMMDDhhmmss (Hinnant, "chrono-compatible date algorithms")."""
    days, clock = seconds // 86400 + 719468, seconds % 86400
    era = days // 146097
    day_of_era = days - era * 146097
    year = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9
    date = ((year + era * 400 + (month <= 2)) * 100 + month) * 100 + day
    return ((date * 100 + clock // 3600) * 100 + clock // 60 % 60) * 100 + clock % 60


@njit_uncounted
def _size_of_moment(seconds, first, behind):  # type: ignore[no-untyped-def]  # compiled
    if behind > first:
        return _CLOCK + 1 + behind - first
    return _CLOCK if seconds % 86400 != 0 else _DATE


@njit_uncounted
def _byte_of_moment(place, rest, divisor):  # type: ignore[no-untyped-def]  # compiled
    """Returns (the byte at ``place`` of a date and time, the digits that are left, the divisor of the next one)."""
    if _MOMENT[place] != _ZERO:
        return _MOMENT[place], rest, divisor
    return np.uint8(_ZERO + rest // divisor), rest % divisor, divisor // 10


@njit_uncounted
def _key_of_moment(seconds, text, first, behind):  # type: ignore[no-untyped-def]  # compiled
    key, rest, divisor = FNV_START, _digits_of_moment(seconds), np.int64(10**13)
    for place in range(min(_size_of_moment(seconds, first, behind), _CLOCK)):
        byte, rest, divisor = _byte_of_moment(place, rest, divisor)
        key = add_byte(key, byte)
    if behind > first:
        key = add_byte(key, np.uint8(_POINT))
        for place in range(first, behind):
            key = add_byte(key, text[place])
    return as_key(key)


def canonical_texts(
    ends: NDArray[np.int32], data: NDArray[np.uint8], is_whole: bool
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """The texts that the keys of strings (ends [S + 1], bytes) are made of. ``is_whole``: of a column with ``whole``."""
    out = np.empty(len(data) + 3 * len(ends), np.uint8)  # 17:09 becomes 17:09:00
    out_ends = np.zeros(len(ends), np.int32)
    _write_texts(ends, data, is_whole, out_ends, out)
    return out_ends, out[: out_ends[-1]]


@njit(nogil=True, cache=True)
def _write_texts(ends, data, is_whole, out_ends, out):  # type: ignore[no-untyped-def]  # compiled
    at = 0
    for i in range(len(ends) - 1):
        start, stop = np.int64(ends[i]), np.int64(ends[i + 1])
        if is_whole:
            form, first, behind = whole_number(data, start, stop)
            if form == WHOLE:
                start, stop = first, behind
        at = _write_text(data, start, stop, out, at)
        out_ends[i + 1] = at


@njit_uncounted
def _write_text(data, start, stop, out, at):  # type: ignore[no-untyped-def]  # compiled
    """Writes one text from ``at`` on; returns the place after it."""
    length = stop - start
    is_flag = (length == len(TRUE) and is_word(data, start, TRUE)) or (
        length == len(FALSE) and is_word(data, start, FALSE)
    )
    if length > _DATE + 5:
        seconds, first, behind, is_time = _moment(data, start, stop)
        if is_time:
            rest, divisor = _digits_of_moment(seconds), np.int64(10**13)
            size = _size_of_moment(seconds, first, behind)
            for place in range(min(size, _CLOCK)):
                out[at + place], rest, divisor = _byte_of_moment(place, rest, divisor)
            if behind > first:
                out[at + _CLOCK] = _POINT
                for place in range(first, behind):
                    out[at + _CLOCK + 1 + place - first] = data[place]
            return at + size
    for place in range(length):
        byte = data[start + place]
        out[at + place] = byte | 32 if is_flag else byte
    return at + length


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
