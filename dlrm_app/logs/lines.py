"""The compiled parser: lines of text → columns of numbers, in one pass, every line checked.

Lines that ``plain_lines`` supports are read many at a time, others one by one with the rules of ``fields``.
Functions of a field do not count references to arrays, which would take twice as long as parsing.
"""

import numpy as np

from dlrm_app.kernels.compiled import njit, njit_uncounted
from dlrm_app.logs.fields import (
    CARRIAGE_RETURN,
    DENSE_INTEGER,
    ELEMENT_WEIGHT,
    IGNORE,
    KEY_HEX,
    KEY_INTEGER,
    KEY_WHOLE,
    LABEL,
    NEWLINE,
    OTHER_LABEL,
    TIME_FORMAT,
    is_null,
    is_null_word,
    parse_format,
    parse_key,
    parse_number,
)
from dlrm_app.logs.list_fields import parse_list
from dlrm_app.logs.plain_lines import BATCH, make_room, read_batch
from dlrm_app.logs.sources.text_units import MAX_LINE
from dlrm_app.logs.strings import BAD, MISSING_KEY

BLANK, TOO_LONG, COLUMNS, OPEN_QUOTE, FIELD, UNLIKE, HEADER = range(1, 8)
"""Reasons to reject a line.

OPEN_QUOTE: a quoted field does not end on it; FIELD: a field breaks the rule of its kind; UNLIKE: a list and its
weights have different numbers of elements; HEADER: the line has the columns' names.
"""

DONE, ROWS_FULL, REJECTS_FULL, LISTS_FULL = range(4)
"""Reasons why the parser stopped: the end of the text, the line limit, or a full output."""

_PLAIN, _QUOTED, _ESCAPED, _MALFORMED, _OPEN = range(5)
_NO_BYTE = -1


@njit(nogil=True, cache=True)
def parse_lines(  # type: ignore[no-untyped-def]  # compiled
    text,  # uint8; ends with a line end at ``stop - 1``, PADDING bytes follow
    start,
    stop,
    num_lines,  # to read at most
    marks,  # (delimiter, quote or -1, what stands for a line break within quotes or -1)
    columns,  # int64 [C, 3 + …]: ``parser.column_codes``
    sized,  # int64 [W, 4]: a column of element weights or vectors, its place in ``lists``, that of its list, or -1 and
    # the size of vectors
    header,  # uint64 [H]: the keys of a repeated header, in the first keys of a row
    out,  # (labels uint8 [R], times and dense float64 [T + N, R], keys uint64 [F, R], spans int64 [F, R or 0, 2])
    lists,  # of C list columns (ends int64 [C, R + 1], keys uint64 [C, V], spans int64 [C, V or 0, 2])
    row,  # rows in the outputs so far
    rejects,  # int64 [K, 7]: line, its start and end, reason, column or number of columns, the field's start and end;
    # of a list and its weights: their numbers of elements
):
    """Returns (position after the last line read, number of rows now, lines read, rejects, reason why it stopped).

    Missing dense values are NaN, missing keys MISSING_KEY; values that null words stand for are left to the caller.
    Spans are the positions of strings in ``text``; the end is negative if quotes inside are doubled.
    """
    capacity = out[0].size
    lines, num_rejects, at = 0, 0, start
    batch = BATCH if _supports_batches(marks, columns) else 0
    room = make_room(len(columns))
    while at < stop and lines < num_lines:
        if row == capacity:
            return at, row, lines, num_rejects, ROWS_FULL
        if batch > 0:
            wanted = min(batch, capacity - row, num_lines - lines)
            count, at = read_batch(text, at, stop, np.uint8(marks[0]), columns, out, row, wanted, room)
            row, lines = row + count, lines + count
            # if few lines are plain, few are tried at once
            batch = min(2 * batch, BATCH) if count == wanted else max(count, 1)
            if count > 0:
                continue
        if num_rejects == len(rejects):
            return at, row, lines, num_rejects, REJECTS_FULL
        stop_of_line = line_end(text, at) if marks[2] >= 0 else at
        end, fault = _parse_line(text, at, marks, columns, out, lists, row)
        if fault != _FINE:
            _replace(text, at, stop_of_line, NEWLINE, marks[2])
        if fault == _NO_ROOM:
            return at, row, lines, num_rejects, LISTS_FULL
        unlike = _unlike(sized, lists[0], row) if fault == _FINE else -1
        is_header = fault == _FINE and len(header) > 0 and _is_header(out[2], row, header)
        if fault == _FINE and unlike < 0 and not is_header and end - at <= MAX_LINE:
            row += 1
        else:
            end = line_end(text, end)
            why = _explain(text, at, end, fault, marks, len(columns))
            if is_header:
                why = HEADER, 0, at, at
            if unlike >= 0 and end - at <= MAX_LINE:
                size, wanted_size = _sizes(sized[unlike], lists[0], row)
                why = UNLIKE, sized[unlike, 0], size, wanted_size
            rejects[num_rejects, 0], rejects[num_rejects, 1], rejects[num_rejects, 2] = lines, at, end
            for place in range(4):
                rejects[num_rejects, 3 + place] = why[place]
            num_rejects += 1
        at = end + 1
        lines += 1
    return at, row, lines, num_rejects, DONE


@njit(nogil=True, cache=True)
def _supports_batches(marks, columns):  # type: ignore[no-untyped-def]  # compiled
    """True if ``plain_lines`` supports these columns; it supports no quotes."""
    for c in range(len(columns)):
        kind = columns[c, 0]
        if columns[c, 2] >= 0 or kind not in (LABEL, OTHER_LABEL, DENSE_INTEGER, KEY_HEX):
            return False
    return marks[1] < 0


_FINE, _NO_ROOM, _WRONG_COUNT = -1, -2, -3


@njit_uncounted
def _is_header(keys, row, header):  # type: ignore[no-untyped-def]  # compiled
    for slot in range(len(header)):  # noqa: SIM110  # numba compiles no generators
        if keys[slot, row] != header[slot]:
            return False
    return True


@njit_uncounted
def _size(ends, slot, row):  # type: ignore[no-untyped-def]  # compiled
    """The number of elements of a row's list, which was read last."""
    return ends[slot, row + 1] - ends[slot, row]


@njit_uncounted
def _sizes(column, ends, row):  # type: ignore[no-untyped-def]  # compiled
    """(the number of elements of one of ``sized``, the number that it must have)."""
    _, slot, elements, size = column
    return _size(ends, slot, row), _size(ends, elements, row) if elements >= 0 else size


@njit_uncounted
def _unlike(sized, ends, row):  # type: ignore[no-untyped-def]  # compiled
    """The first of ``sized`` with another number of elements than it must have; -1 for none. A vector may be missing."""
    for number in range(len(sized)):
        size, wanted = _sizes(sized[number], ends, row)
        if size != wanted and (size > 0 or sized[number, 2] >= 0):
            return number
    return -1


@njit_uncounted
def _parse_line(text, at, marks, columns, out, lists, row):  # type: ignore[no-untyped-def]  # compiled
    """Returns (a position on the line, its end if the line is good; the bad column, or one of the codes above)."""
    for c in range(len(columns)):
        end, is_good = _parse_field(text, at, marks, columns[c], out, lists, row)
        if is_good < 0:
            return at, _NO_ROOM
        if is_good == 0:
            return at, c
        at = end + 1
        if text[end] == NEWLINE:
            return end, _FINE if c == len(columns) - 1 else _WRONG_COUNT
    return at - 1, _WRONG_COUNT


@njit_uncounted
def _parse_field(text, at, marks, column, out, lists, row):  # type: ignore[no-untyped-def]  # compiled
    """Returns (position of the mark after the field; 1 good, 0 bad, -1 no room for its list)."""
    delimiter, quote, hidden = marks
    labels, dense, keys, spans = out
    kind, slot, separator = column[0], column[1], column[2]
    begin, behind, end, form = locate(text, at, delimiter, quote)
    if form == _OPEN or (form == _MALFORMED and kind != IGNORE):
        return end, 0
    if hidden >= 0:
        _replace(text, begin, behind, hidden, NEWLINE)
    if kind == IGNORE:
        return end, 1
    doubled = quote if form == _ESCAPED else _NO_BYTE
    if separator >= 0:
        is_null_list = is_null_word(text, begin, behind, column)
        if is_null_list and kind != ELEMENT_WEIGHT:
            behind = begin
        found = parse_list(text, begin, behind, column, doubled, lists, row)
        if found == 0 and is_null_list:  # weights that are numbers are never missing
            found = parse_list(text, begin, begin, column, doubled, lists, row)
        return end, found
    if KEY_INTEGER <= kind <= KEY_WHOLE:
        keys[slot, row], state = parse_key(text, begin, behind, kind, doubled)
        if spans.shape[1] > 0:
            spans[slot, row, 0] = begin
            spans[slot, row, 1] = behind if doubled < 0 else -behind
    else:
        if kind == TIME_FORMAT:
            number, state = parse_format(text, begin, behind, column)
        else:
            number, state = parse_number(text, begin, behind, kind)
        if kind == LABEL:
            labels[row] = np.uint8(number)
        else:
            dense[slot, row] = number
    if state == BAD and is_null(text, begin, behind, column):
        if KEY_INTEGER <= kind <= KEY_WHOLE:
            keys[slot, row] = MISSING_KEY
        else:
            dense[slot, row] = np.nan
        return end, 1
    return end, 0 if state == BAD else 1


@njit_uncounted
def locate(text, at, delimiter, quote):  # type: ignore[no-untyped-def]  # compiled
    """Returns (first byte of a field, byte after its last one, position of the mark after it, its quoting)."""
    form = _PLAIN
    if text[at] == quote:
        form, end = _QUOTED, at + 1
        while text[end] != NEWLINE:
            if text[end] == quote:
                if text[end + 1] != quote:
                    break
                form = _ESCAPED
                end += 1
            end += 1
        behind = end
        if text[end] == quote:
            end += 1
            if text[end] == CARRIAGE_RETURN and text[end + 1] == NEWLINE:
                end += 1
            if text[end] == delimiter or text[end] == NEWLINE:
                return at + 1, behind, end, form
            form = _MALFORMED
        else:
            form = _OPEN
    end = at
    while text[end] != delimiter and text[end] != NEWLINE:
        end += 1
    behind = end
    if text[end] == NEWLINE and end > at and text[end - 1] == CARRIAGE_RETURN:
        behind -= 1
    return at, behind, end, form


@njit_uncounted
def _replace(text, start, stop, byte, other):  # type: ignore[no-untyped-def]  # compiled
    for at in range(start, stop):
        if text[at] == byte:
            text[at] = other


@njit_uncounted
def _explain(text, start, end, fault, marks, num_columns):  # type: ignore[no-untyped-def]  # compiled
    """Returns (reason, detail, start and end of the bad field) of a rejected line.

    Detail: the column, or the number of columns.
    """
    if end - start > MAX_LINE:
        return TOO_LONG, 0, start, start
    if end == start or (end == start + 1 and text[start] == CARRIAGE_RETURN):
        return BLANK, 0, start, start
    count, at, first, behind = 0, start, start, start
    while at <= end:
        begin, close, stop, form = locate(text, at, marks[0], marks[1])
        if form == _OPEN and count < num_columns:
            return OPEN_QUOTE, count, begin, close
        if count == fault:
            first, behind = begin, close
        at = stop + 1
        count += 1
    if count != num_columns:
        return COLUMNS, count, start, start
    return FIELD, fault, first, behind


@njit_uncounted
def line_end(text, at):  # type: ignore[no-untyped-def]  # compiled
    while text[at] != NEWLINE:
        at += 1
    return at


@njit_uncounted
def count_lines(text, start, stop):  # type: ignore[no-untyped-def]  # compiled
    """The number of line ends in text[start:stop]."""
    count = 0
    for at in range(start, stop):
        count += text[at] == NEWLINE
    return count
