"""Rows copied from array to array, compiled: columns into another order, ranges of row groups into batches.

Arrays come as addresses where there are many of them: compiled code takes any number of those, while it would be compiled
anew for each number of arrays. Whoever calls keeps the arrays alive, and indices within them.
"""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]  # it has none
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from dlrm_app.kernels.compiled import njit

_SOME = 1 << 40
"""The length of an array at an address, which nobody looks at."""
_NEAR = 512
"""Rows whose dense values stay in the first cache while one column after the other is spread over them."""
_LEAD = 2
"""Ranges between the one whose ids are copied and the one whose ids are asked for: each begins in memory that no cache holds."""
_WIDTH, _LINE = 4, 64
"""Bytes of an id, and of what memory gives at once."""


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    """The pointer to an address, for ``carray``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@intrinsic
def _prefetch(typing_context: Any, address: Any) -> Any:
    """Has the memory at an address brought near, without waiting for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        reading, for_long, data = (ir.Constant(number, value) for value in (0, 3, 1))
        pointer = builder.inttoptr(arguments[0], cgutils.voidptr_t)
        builder.call(prefetch, [pointer, reading, for_long, data])
        return context.get_dummy_value()

    return types.void(address), generate


@njit(nogil=True, cache=True)
def gather_columns(columns, order, out):  # type: ignore[no-untyped-def]  # compiled
    """out[c, i] = column c's value order[i]; ``columns``: addresses of int32."""
    for c in range(len(columns)):
        column = carray(_pointer(columns[c]), _SOME, np.int32)
        for i in range(len(order)):
            out[c, i] = column[order[i]]


@njit(nogil=True, cache=True)
def gather_rows(columns, order, out):  # type: ignore[no-untyped-def]  # compiled
    """out[i, c] = column c's value order[i]; ``columns``: addresses of float32."""
    for first in range(0, len(order), _NEAR):
        last = min(first + _NEAR, len(order))
        for c in range(len(columns)):
            column = carray(_pointer(columns[c]), _SOME, np.float32)
            for i in range(first, last):
                out[i, c] = column[order[i]]


@njit(nogil=True, cache=True)
def gather_bags(ids, offsets, order, out_ids, out_offsets):  # type: ignore[no-untyped-def]  # compiled
    """Bag i of the result is bag order[i]; bag i is ids[offsets[i] : offsets[i + 1]]."""
    at = 0
    out_offsets[0] = 0
    for i in range(len(order)):
        row = order[i]
        for k in range(offsets[row], offsets[row + 1]):
            out_ids[at] = ids[k]
            at += 1
        out_offsets[i + 1] = at


@njit(nogil=True, cache=True)
def count_rows(addresses, ranges, rows_per_lane, num_rows, num_ids):  # type: ignore[no-untyped-def]  # compiled
    """num_rows[k] and num_ids[k, f] = the rows, and feature f's ids, that ``copy_rows`` gives batch k."""
    num_rows[:] = 0
    num_ids[:] = 0
    for p in range(len(ranges)):
        row, stop, at = ranges[p]
        while row < stop:
            size, k = min(rows_per_lane - at % rows_per_lane, stop - row), at // rows_per_lane
            num_rows[k] += size
            for f in range(num_ids.shape[1]):
                bags = addresses[p, 3 + 2 * f]
                if bags == 0:
                    num_ids[k, f] += size
                else:
                    offsets = carray(_pointer(bags), _SOME, np.int32)
                    num_ids[k, f] += offsets[row + size] - offsets[row]
            row += size
            at += size


@njit(nogil=True, cache=True)
def copy_rows(addresses, ranges, rows_per_lane, dense, labels, ids, begins, lengths):  # type: ignore[no-untyped-def]  # compiled
    """Spreads ranges of rows over K batches that follow each other.

    addresses[p]: of the dense values [rows, N] and the labels [rows] of the row group of range p, and for each of F
    features of its ids and of its bags' offsets, 0 where every row has one id. ranges[p]: its first row, its end, and how
    many rows before it its lane gives to these batches, of which each takes ``rows_per_lane``. Each batch gets its rows in
    the order of the ranges: into ``dense`` [K, B, N], ``labels`` [K, B], ``ids`` with batch k's ids of feature f from
    begins[k, f] on, and ``lengths`` [K, F, B], or [K, F, 0] where nobody wants them.
    """
    num_batches, num_features = begins.shape
    num_dense, with_lengths = dense.shape[2], lengths.shape[2] > 0
    rows = np.zeros(num_batches, np.int64)
    for p in range(len(ranges)):
        values = carray(_pointer(addresses[p, 0]), _SOME, np.float32)
        clicks = carray(_pointer(addresses[p, 1]), _SOME, np.float32)
        row, stop, at = ranges[p]
        while row < stop:
            size, k = min(rows_per_lane - at % rows_per_lane, stop - row), at // rows_per_lane
            first, last = rows[k], rows[k] + size
            out = dense[k, first:last].reshape(size * num_dense)
            for i in range(size * num_dense):
                out[i] = values[row * num_dense + i]
            for i in range(size):
                labels[k, first + i] = clicks[row + i]
            rows[k] = last
            row += size
            at += size
    for f in range(num_features):
        rows[:] = 0
        ends = begins[:, f].copy()
        for p in range(len(ranges)):
            values = carray(_pointer(addresses[p, 2 + 2 * f]), _SOME, np.int32)
            bags = addresses[p, 3 + 2 * f]
            offsets = carray(_pointer(bags), _SOME, np.int32)
            if bags == 0 and p + _LEAD < len(ranges):
                first, last = ranges[p + _LEAD, 0], ranges[p + _LEAD, 1]
                for near in range(_WIDTH * first, _WIDTH * last, _LINE):
                    _prefetch(addresses[p + _LEAD, 2 + 2 * f] + np.uint64(near))
            row, stop, at = ranges[p]
            while row < stop:
                size, k = min(rows_per_lane - at % rows_per_lane, stop - row), at // rows_per_lane
                begin, end = row, row + size
                if bags != 0:
                    begin, end = np.int64(offsets[row]), np.int64(offsets[row + size])
                if with_lengths:
                    for i in range(size):
                        lengths[k, f, rows[k] + i] = (
                            1 if bags == 0 else offsets[row + i + 1] - offsets[row + i]
                        )
                for i in range(end - begin):
                    ids[ends[k] + i] = values[begin + i]
                ends[k] += end - begin
                rows[k] += size
                row += size
                at += size
