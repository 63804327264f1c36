"""Compiled rules for a field of text that holds a list: its elements, and their weights if it holds these too."""

import numpy as np

from dlrm_app.kernels.compiled import njit_uncounted
from dlrm_app.logs.fields import (
    BLANK,
    ELEMENT_WEIGHT,
    KEY_STRING,
    VECTOR,
    is_blank,
    is_null,
    parse_key,
    trimmed,
)
from dlrm_app.logs.strings import ABSENT, BAD, MISSING_KEY, PRESENT, parse_escaped

NULLS_IN_BRACKETS = ("null", "NULL", "None", "nan", "NaN")
"""Elements of lists in brackets that mean a missing value where they are not in quotes."""
_NULLS = np.frombuffer("".join(f"{word}\n" for word in NULLS_IN_BRACKETS).encode(), np.uint8)
_APOSTROPHE, _QUOTE, _BACKSLASH, _NEWLINE = (ord(mark) for mark in "'\"\\\n")
_THREE_POINTS, _ELLIPSIS = np.frombuffer(b"...", np.uint8), np.frombuffer("…".encode(), np.uint8)


@njit_uncounted
def parse_list(text, begin, behind, column, doubled, lists, row):  # type: ignore[no-untyped-def]  # compiled
    """Reads the elements of a list. Returns 1 good, 0 bad, -1 no room. An empty field is an empty list."""
    kind, slot, separator, mark = column[0], column[1], column[2] & 0xFF, (column[2] >> 24) & 0xFF
    opening, closing, weights = (column[2] >> 8) & 0xFF, (column[2] >> 16) & 0xFF, column[2] >> 32
    has_runs = opening > 0 and separator == BLANK
    ends, keys, spans = lists
    index = ends[slot, row]
    shift = ends[weights, row] - index if mark > 0 else 0
    if opening > 0:
        begin, behind = _within_brackets(text, begin, behind, opening, closing)
        if begin < 0:
            return 0
    at = begin
    while begin < behind and at <= behind:
        stop = at
        while stop < behind and text[stop] != separator and not (has_runs and is_blank(text[stop])):
            stop += 1
        if index == keys.shape[1] or index + shift == keys.shape[1]:
            return -1
        first, last, behind_value, is_escaped = at, stop, stop, False
        if separator != BLANK or opening > 0:
            first, last = trimmed(text, at, stop)
        if opening > 0:
            inside = _unquoted(text, first, last, doubled)
            if inside[0] == first and _is_lost(text, first, last, opening):
                return 0
            is_escaped = inside[0] > first and kind == KEY_STRING and _has_escapes(text, first, last)
            if inside[0] == first and _is_null_in_brackets(text, first, last):
                last = first
            else:
                first, last = inside
        if mark > 0:
            behind_value = last - 1
            while behind_value > first and text[behind_value] != mark:
                behind_value -= 1
            bits, state = parse_key(text, behind_value + 1, last, ELEMENT_WEIGHT, doubled)
            if behind_value <= first or state != PRESENT:
                return 0
            keys[weights, index + shift] = bits
            last = behind_value
        if is_escaped:
            keys[slot, index], state = parse_escaped(text, first, last, doubled)
        else:
            keys[slot, index], state = parse_key(text, first, last, kind, doubled)
        if state == BAD or (state == ABSENT and kind in (ELEMENT_WEIGHT, VECTOR)):
            if not is_null(text, first, last, column):
                return 0
            keys[slot, index] = MISSING_KEY
        if spans.shape[1] > 0:
            spans[slot, index, 0] = ~first if is_escaped else first
            spans[slot, index, 1] = last if doubled < 0 else -last
        index += 1
        at = _after_separators(text, stop, behind, has_runs)
    ends[slot, row + 1] = index
    if mark > 0:
        ends[weights, row + 1] = index + shift
    return 1


@njit_uncounted
def _within_brackets(text, begin, behind, opening, closing):  # type: ignore[no-untyped-def]  # compiled
    """Returns the bounds of what the brackets hold; of an empty field as it is; negative without brackets."""
    begin, behind = trimmed(text, begin, behind)
    if begin == behind:
        return begin, behind
    if behind - begin < 2 or text[begin] != opening or text[behind - 1] != closing:
        return -1, -1
    return trimmed(text, begin + 1, behind - 1)


@njit_uncounted
def _after_separators(text, at, behind, has_runs):  # type: ignore[no-untyped-def]  # compiled
    while has_runs and at + 1 < behind and is_blank(text[at + 1]):
        at += 1
    return at + 1


@njit_uncounted
def _is_lost(text, first, last, opening):  # type: ignore[no-untyped-def]  # compiled
    """True if an element is a list itself, opens a quote that it does not close, or stands for elements left out."""
    if first == last:
        return False
    if text[first] == opening or text[first] == _APOSTROPHE or text[first] == _QUOTE:
        return True
    return _begins(text, first, last, _ELLIPSIS) or (
        last - first == len(_THREE_POINTS) and _begins(text, first, last, _THREE_POINTS)
    )


@njit_uncounted
def _begins(text, first, last, word):  # type: ignore[no-untyped-def]  # compiled
    for place in range(len(word)):
        if first + place >= last or text[first + place] != word[place]:
            return False
    return True


@njit_uncounted
def _is_null_in_brackets(text, first, last):  # type: ignore[no-untyped-def]  # compiled
    begin = 0
    while begin < len(_NULLS):
        end, is_same = begin, True
        while _NULLS[end] != _NEWLINE:
            is_same = is_same and first + end - begin < last and text[first + end - begin] == _NULLS[end]
            end += 1
        if is_same and end - begin == last - first:
            return True
        begin = end + 1
    return False


@njit_uncounted
def _has_escapes(text, first, last):  # type: ignore[no-untyped-def]  # compiled
    for place in range(first, last):  # noqa: SIM110  # numba compiles no generators
        if text[place] == _BACKSLASH:
            return True
    return False


@njit_uncounted
def _unquoted(text, at, stop, doubled):  # type: ignore[no-untyped-def]  # compiled
    if at < stop and (text[at] == _APOSTROPHE or text[at] == _QUOTE):
        width = 2 if text[at] == doubled else 1
        if stop - at >= 2 * width and text[stop - 1] == text[at]:
            return at + width, stop - width
    return at, stop
