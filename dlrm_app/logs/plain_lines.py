"""Reads lines of labels, whole numbers and hex numbers, without quotes, many at a time.

This takes half the time of reading one by one.

First it finds the marks (delimiters and line ends) of a batch of lines, 64 bytes of text in a step. Then each column
is read for all lines of the batch: its fields are gathered as words of 8 bytes, in loops that compilers turn into
vector instructions. Other lines are left to ``lines``, which reads them one by one and explains errors.
The functions that run once for each column and batch do not count references, which would take a fifth of the time.
"""

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]  # it has none
from numba import types
from numba.extending import intrinsic

from dlrm_app.kernels.compiled import Untyped, njit, njit_uncounted
from dlrm_app.logs.fields import CARRIAGE_RETURN, DENSE_INTEGER, LABEL, NEWLINE, OTHER_LABEL
from dlrm_app.logs.sources.text_units import MAX_LINE, PADDING
from dlrm_app.logs.strings import MISSING_KEY
from dlrm_app.logs.words import WORD, hex_of, load_word, number_of, padded, trailing_zeros

BATCH = 128
"""Lines in a batch; their marks and text fit into the fastest cache."""
BLOCK = PADDING
"""Bytes searched in one step."""

_MINUS, _LOW_8 = np.uint64(ord("-")), np.uint64(0xFF)
_STEP = 8
"""Marks written at a time."""
_0, _1 = np.uint64(0), np.uint64(1)


@intrinsic
def _find_byte(typing_context, text, at, byte):  # type: ignore[no-untyped-def]  # numba's protocol
    """A bit for each of text[at:at + 64], set if it is ``byte``; the first one is the lowest bit."""

    def generate(context: Untyped, builder: Untyped, signature: Untyped, arguments: Untyped) -> Untyped:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        vector = ir.VectorType(ir.IntType(8), BLOCK)
        pointer = builder.bitcast(builder.gep(array.data, [arguments[1]]), vector.as_pointer())
        loaded = builder.load(pointer)
        loaded.align = 1
        first = ir.Constant(ir.IntType(32), 0)
        one = builder.insert_element(ir.Constant(vector, ir.Undefined), arguments[2], first)
        spread = ir.Constant(ir.VectorType(ir.IntType(32), BLOCK), [first] * BLOCK)
        all_bytes = builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), spread)
        return builder.bitcast(builder.icmp_unsigned("==", loaded, all_bytes), ir.IntType(BLOCK))

    return types.uint64(text, types.intp, types.uint8), generate


@intrinsic
def _count_ones(typing_context, word):  # type: ignore[no-untyped-def]  # numba's protocol
    def generate(context: Untyped, builder: Untyped, signature: Untyped, arguments: Untyped) -> Untyped:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


@njit_uncounted
def _find_marks(text, start, stop, delimiter, num_columns, marks):  # type: ignore[no-untyped-def]  # compiled
    """Counts the lines from ``start`` on that have ``num_columns`` columns, up to the first that does not.

    ``marks`` int32 [lines * num_columns + 1 + 2 * BLOCK]: the position before the first line, then of each mark,
    relative to ``start``. Its length limits the number of lines.
    """
    room = (len(marks) - 1 - 2 * BLOCK) // num_columns * num_columns
    marks[0] = -1
    count, lines, line_start = np.int64(0), 0, np.int64(0)
    for at in range(start, stop, BLOCK):
        ends = _find_byte(text, at, np.uint8(NEWLINE))
        marked = _find_byte(text, at, np.uint8(delimiter)) | ends
        left, base, behind = marked, np.int32(at - start), np.uint64(count + 1)
        while left != _0:
            for step in range(_STEP):  # without a test for each mark
                marks[behind + np.uint64(step)] = base + np.int32(trailing_zeros(left))
                left &= left - _1
            behind += np.uint64(_STEP)
        while ends != _0:
            end = ends & (_0 - ends)
            number = count + np.int64(_count_ones(marked & (end - _1))) + 1
            # marks[number], without waiting for its store
            mark = np.int64(base) + np.int64(trailing_zeros(end))
            if number != (lines + 1) * num_columns or start + mark >= stop or mark - line_start > MAX_LINE:
                return lines
            lines += 1
            if number == room:
                return lines
            line_start = mark + 1
            ends ^= end
        count += np.int64(_count_ones(marked))
        if count > room:
            return lines
    return lines


@njit_uncounted
def _gather(text, start, marks, column, num_columns, words, lengths):  # type: ignore[no-untyped-def]  # compiled
    """Gathers the fields of one column: up to 8 bytes of each, and its length."""
    before, behind = marks[column::num_columns], marks[column + 1 :: num_columns]
    is_last = column == num_columns - 1
    for line in range(len(words)):
        begin, end = start + np.int64(before[line]) + 1, start + np.int64(behind[line])
        if is_last:
            end -= end > begin and text[end - 1] == CARRIAGE_RETURN
        words[line] = load_word(text, begin)
        lengths[line] = end - begin


@njit_uncounted
def _read_labels(text, start, marks, column, num_columns, out, bad):  # type: ignore[no-untyped-def]  # compiled
    for line in range(len(out)):
        begin = start + np.int64(marks[line * num_columns + column]) + 1
        length = start + np.int64(marks[line * num_columns + column + 1]) - begin
        label = np.int64(text[begin]) - 48
        out[line] = label
        bad[line] |= np.int64((length != 1) | (label < 0) | (label > 1))


@njit_uncounted
def _read_other_labels(words, lengths, out, bad):  # type: ignore[no-untyped-def]  # compiled
    for line in range(len(out)):
        label = np.int64(words[line] & _LOW_8) - 48
        out[line] = np.nan if lengths[line] == 0 else np.float64(label)
        bad[line] |= np.int64((lengths[line] != 0) & ((lengths[line] != 1) | (label < 0) | (label > 1)))


@njit_uncounted
def _read_hexes(words, lengths, out, bad):  # type: ignore[no-untyped-def]  # compiled
    for line in range(len(out)):
        value, is_hex = hex_of(padded(words[line], lengths[line]))
        out[line] = MISSING_KEY if lengths[line] == 0 else value
        bad[line] |= np.int64((lengths[line] > WORD) | ((lengths[line] != 0) & (not is_hex)))


@njit_uncounted
def _read_integers(words, lengths, out, bad):  # type: ignore[no-untyped-def]  # compiled
    """Reads integers of up to 8 characters, the sign included."""
    for line in range(len(out)):
        sign = np.int64((words[line] & _LOW_8) == _MINUS)
        length = lengths[line] - sign
        number, is_number = number_of(padded(words[line] >> np.uint64(sign << 3), length))
        value = np.float64(np.int32((number ^ -sign) + sign))
        out[line] = np.nan if lengths[line] == 0 else value
        is_good = (lengths[line] == 0) | (is_number & (length > 0))
        bad[line] |= np.int64((lengths[line] > WORD) | (not is_good))


@njit(nogil=True, cache=True)
def make_room(num_columns):  # type: ignore[no-untyped-def]  # compiled
    """Makes buffers for ``read_batch``: the marks of a batch, and the words, lengths and errors of one column.

    The last three have elements of the same width, so that vector instructions need no conversions.
    """
    marks = np.empty(BATCH * num_columns + 1 + 2 * BLOCK, np.int32)
    return marks, np.empty(BATCH, np.uint64), np.empty(BATCH, np.int64), np.empty(BATCH, np.int64)


@njit_uncounted
def read_batch(  # type: ignore[no-untyped-def]  # compiled
    text, start, stop, delimiter, columns, out, row, num_lines, room
):
    """Reads up to ``num_lines`` lines (at most BATCH) into the rows from ``row`` on.

    Returns (lines read, position after them).

    It ends before the first line that must be read alone. ``columns`` and ``out`` are those of ``lines.parse_lines``.
    """
    labels, dense, keys, _ = out
    num_columns = len(columns)
    marks = room[0][: num_lines * num_columns + 1 + 2 * BLOCK]
    count = _find_marks(text, start, stop, delimiter, num_columns, marks)
    words, lengths, bad = room[1][:count], room[2][:count], room[3][:count]
    bad[:] = 0
    for column in range(num_columns):
        kind, slot = columns[column, 0], columns[column, 1]
        if kind == LABEL:
            _read_labels(text, start, marks, column, num_columns, labels[row : row + count], bad)
            continue
        _gather(text, start, marks, column, num_columns, words, lengths)
        if kind == DENSE_INTEGER:
            _read_integers(words, lengths, dense[slot, row : row + count], bad)
        elif kind == OTHER_LABEL:
            _read_other_labels(words, lengths, dense[slot, row : row + count], bad)
        else:
            _read_hexes(words, lengths, keys[slot, row : row + count], bad)
    good = 0
    while good < count and bad[good] == 0:
        good += 1
    return good, start + np.int64(marks[good * num_columns]) + 1
