"""Decoded rows: as columns, in the order of an epoch, and as ranges to be copied into batches.

The copying is compiled. Many arrays are passed as addresses: compiled code takes any number of those, while it would be
compiled again for each number of arrays. The caller must keep the arrays alive and the indices within them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import Bags
from dlrm_app.kernels.compiled import Untyped, njit
from dlrm_app.kernels.rows import LINE, bring_to_read


@dataclass(frozen=True, slots=True)
class Columns:
    """Decoded rows: a contiguous array, or Bags, for each column.

    Ids are int32 as in the files. A table has fewer than 2^31 rows, and 64 bits would double memory, copies to the
    device and the exchange between ranks. ``element_weights``: the bits of a weight for each id, of the
    features that have them. ``vectors``: [R, S] of each column of vectors.
    """

    dense: Sequence[NDArray[np.float32]]
    features: Sequence[NDArray[np.int32] | Bags]
    supervision: Sequence[NDArray[np.uint8] | NDArray[np.float32]]
    """Numbers that loss and metrics read, but no model: the labels, the main one first, NaN where a row lacks another
    one; and the weights, if rows have any."""
    element_weights: Sequence[Bags] = ()
    vectors: Sequence[NDArray[np.float32]] = ()

    def __len__(self) -> int:
        return len(self.supervision[0])


@dataclass(frozen=True)
class Rows:
    """``dense`` [rows, N], of dense columns and behind them the numbers of vectors, the ids [rows] or Bags of each of
    F ``features``, ``supervision`` [rows, S]: the labels, and the weight if rows have one.

    Arrays that were made for these rows are parts of ``memory``. The bits of element weights follow the ids and are
    copied like them.
    """

    dense: NDArray[np.float32]
    features: list[NDArray[np.int32] | Bags]
    supervision: NDArray[np.float32]
    memory: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.dense)

    @property
    def labels(self) -> NDArray[np.float32]:
        """The main labels [rows]."""
        return self.supervision[:, 0]

    @cached_property
    def addresses(self) -> NDArray[np.uint64]:
        """Addresses of the arrays for ``copy_rows``, [2 + 2 F]."""
        addresses = [_address(self.dense), _address(self.supervision)]
        for feature in self.features:
            if isinstance(feature, Bags):
                addresses += [_address(feature.values), _address(feature.offsets)]
            else:
                addresses += [_address(feature), 0]
        return np.array(addresses, np.uint64)


@dataclass(frozen=True)
class Ranges:
    """Rows of ``num_batches`` consecutive batches, each with ``rows_per_lane`` rows of every lane.

    ``ranges`` [P, 3]: range p is rows [first, end) of ``rows[p]``; the third number counts the rows that its lane gives
    to these batches before it. Ranges are in the order of the lanes, and in order within a lane.
    """

    rows: Sequence[Rows]
    ranges: NDArray[np.int64]
    rows_per_lane: int
    num_batches: int

    def addresses(self, num_features: int) -> NDArray[np.uint64]:
        """Addresses of the rows of each range for ``copy_rows``, [P, 2 + 2 F]."""
        none = np.empty((0, 2 + 2 * num_features), np.uint64)
        return np.stack([rows.addresses for rows in self.rows]) if self.rows else none


def side_by_side(parts: Sequence[Ranges]) -> Ranges:
    """Batches whose rows are those of all ``parts``, one part after another."""
    if len(parts) == 1:
        return parts[0]
    rows = [each for part in parts for each in part.rows]
    ranges = np.concatenate([part.ranges for part in parts])
    return Ranges(rows, ranges, parts[0].rows_per_lane, parts[0].num_batches)


def arrange(
    columns: Columns, order: NDArray[np.int64] | None, memory: NDArray[np.int32] | None = None
) -> Rows:
    """Puts rows into ``order``: row i of the result is row ``order[i]``. None keeps the order.

    The result overwrites ``memory`` if that is large enough.
    """
    size, num_dense = len(columns), _num_numbers(columns)
    one_hot = [ids for ids in columns.features if not isinstance(ids, Bags)]
    bags = [ids for ids in columns.features if isinstance(ids, Bags)] + [*columns.element_weights]
    supervision = columns.supervision
    sizes = [size * num_dense, size * len(supervision), size * len(one_hot)]
    for each in bags:
        sizes += [len(each.values), size + 1]
    if memory is None or len(memory) < sum(sizes):
        # an eighth more: sizes of row groups with bags differ a little, and a later one reuses this memory
        memory = np.empty(sum(sizes) + sum(sizes) // 8, np.int32)
    parts = np.split(memory[: sum(sizes)], np.cumsum(sizes)[:-1])
    dense = parts[0].view(np.float32).reshape(size, num_dense)
    taught = parts[1].view(np.float32).reshape(size, len(supervision))
    ids = parts[2].reshape(len(one_hot), size)
    ordered_bags = [Bags(*pair) for pair in zip(parts[3::2], parts[4::2], strict=True)]
    rows = np.arange(size, dtype=np.int32) if order is None else order.astype(np.int32)
    _gather_dense(columns, rows, dense)
    for number, values in enumerate(supervision):
        taught[:, number] = values[rows]
    gather_columns(_addresses(one_hot), rows, ids)
    for each, out in zip(bags, ordered_bags, strict=True):
        gather_bags(each.values, each.offsets, rows, out.values, out.offsets)
    next_ids, next_bags = iter(ids), iter(ordered_bags)
    features = [next(next_bags) if isinstance(given, Bags) else next(next_ids) for given in columns.features]
    return Rows(dense, [*features, *next_bags], taught, memory)


def in_given_order(columns: Columns) -> Rows:
    """The rows of ``columns`` as they are; only numbers are copied. For few rows this takes less time than ``arrange``."""
    size, supervision = len(columns), columns.supervision
    dense = np.empty((size, _num_numbers(columns)), np.float32)
    _gather_dense(columns, np.arange(size, dtype=np.int32), dense)
    numbers = np.empty((size, len(supervision)), np.float32)
    for number, values in enumerate(supervision):
        numbers[:, number] = values
    return Rows(dense, [*columns.features, *columns.element_weights], numbers, np.empty(0, np.int32))


def _num_numbers(columns: Columns) -> int:
    """The dense values and the numbers of vectors of a row."""
    return len(columns.dense) + sum(vectors.shape[1] for vectors in columns.vectors)


def _gather_dense(columns: Columns, order: NDArray[np.int32], out: NDArray[np.float32]) -> None:
    """Fills ``out`` [rows, N + W] with dense values and vectors, in ``order``."""
    at = len(columns.dense)
    gather_rows(_addresses(columns.dense), order, out[:, :at] if columns.vectors else out)
    for vectors in columns.vectors:
        out[:, at : at + vectors.shape[1]] = vectors[order]
        at += vectors.shape[1]


def _addresses(arrays: Sequence[NDArray[np.generic]]) -> NDArray[np.uint64]:
    return np.array([_address(array) for array in arrays], np.uint64)


def _address(array: NDArray[np.generic]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


_ANY_LENGTH = 1 << 40
"""A nominal array length; it is never checked."""
_ROW_BLOCK = 512
"""Rows whose dense values stay in the first-level cache while the columns are copied into them one by one."""
_RANGES_AHEAD = 2
"""Ranges to prefetch ahead: the ids of each range begin in memory that no cache holds."""


@intrinsic
def _pointer(typing_context: Untyped, address: Untyped) -> Untyped:
    def generate(context: Untyped, builder: Untyped, signature: Untyped, arguments: Untyped) -> Untyped:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@njit(nogil=True, cache=True)
def gather_columns(columns, order, out):  # type: ignore[no-untyped-def]  # compiled
    """out[c, i] = column c's value order[i]; ``columns``: addresses of int32."""
    for c in range(len(columns)):
        column = carray(_pointer(columns[c]), _ANY_LENGTH, np.int32)
        for i in range(len(order)):
            out[c, i] = column[order[i]]


@njit(nogil=True, cache=True)
def gather_rows(columns, order, out):  # type: ignore[no-untyped-def]  # compiled
    """out[i, c] = column c's value order[i]; ``columns``: addresses of float32."""
    for first in range(0, len(order), _ROW_BLOCK):
        last = min(first + _ROW_BLOCK, len(order))
        for c in range(len(columns)):
            column = carray(_pointer(columns[c]), _ANY_LENGTH, np.float32)
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
def count_rows(addresses, ranges, rows_per_lane, num_batches):  # type: ignore[no-untyped-def]  # compiled
    """Counts the rows of each batch [K] and the ids of each batch and feature [K, F], for ``copy_rows``."""
    num_rows = np.zeros(num_batches, np.int64)
    num_ids = np.zeros((num_batches, addresses.shape[1] // 2 - 1), np.int64)
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
                    offsets = carray(_pointer(bags), _ANY_LENGTH, np.int32)
                    num_ids[k, f] += offsets[row + size] - offsets[row]
            row += size
            at += size
    return num_rows, num_ids


@njit(nogil=True, cache=True)
def copy_rows(  # type: ignore[no-untyped-def]  # compiled
    addresses, ranges, rows_per_lane, dense, supervision, ids, begins, lengths
):
    """Copies ranges of rows into K consecutive batches.

    ``ranges``, ``rows_per_lane``: as in ``Ranges``. ``addresses`` [P, 2 + 2 F]: for each range the addresses of its
    row group's dense values [rows, N] and supervision [rows, S], then for each feature those of the ids and of the
    bags' offsets (0 if every row has one id).

    A batch gets its rows in the order of the ranges: ``dense`` [K, B, N], ``supervision`` [K, S, B], ``ids`` with
    those of batch k and feature f from begins[k, f] on, ``lengths`` [K, F, B], or [K, F, 0] if none are needed.
    """
    _copy_numbers(addresses, ranges, rows_per_lane, dense, supervision)
    for f in range(begins.shape[1]):
        _copy_ids(
            addresses[:, 2 + 2 * f],
            addresses[:, 3 + 2 * f],
            ranges,
            rows_per_lane,
            ids,
            begins[:, f],
            lengths[:, f],
        )


@njit(nogil=True, cache=True)
def _copy_numbers(addresses, ranges, rows_per_lane, dense, supervision):  # type: ignore[no-untyped-def]  # compiled
    num_dense, num_numbers = dense.shape[2], supervision.shape[1]
    rows = np.zeros(len(dense), np.int64)
    for p in range(len(ranges)):
        values = carray(_pointer(addresses[p, 0]), _ANY_LENGTH, np.float32)
        taught = carray(_pointer(addresses[p, 1]), _ANY_LENGTH, np.float32)
        row, stop, at = ranges[p]
        while row < stop:
            size, k = min(rows_per_lane - at % rows_per_lane, stop - row), at // rows_per_lane
            first, last = rows[k], rows[k] + size
            out = dense[k, first:last].reshape(size * num_dense)
            for i in range(size * num_dense):
                out[i] = values[row * num_dense + i]
            for s in range(num_numbers):
                for i in range(size):
                    supervision[k, s, first + i] = taught[(row + i) * num_numbers + s]
            rows[k] = last
            row += size
            at += size


@njit(nogil=True, cache=True)
def _copy_ids(of_ids, of_offsets, ranges, rows_per_lane, ids, begins, lengths):  # type: ignore[no-untyped-def]  # compiled
    """One feature's ids: ``of_ids``, ``of_offsets``, ``begins`` and ``lengths`` are its columns of the arrays above."""
    with_lengths = lengths.shape[1] > 0
    rows, ends = np.zeros(len(begins), np.int64), begins.copy()
    for p in range(len(ranges)):
        values = carray(_pointer(of_ids[p]), _ANY_LENGTH, np.int32)
        bags = of_offsets[p]
        offsets = carray(_pointer(bags), _ANY_LENGTH, np.int32)
        if bags == 0 and p + _RANGES_AHEAD < len(ranges):
            ahead = carray(_pointer(of_ids[p + _RANGES_AHEAD]), _ANY_LENGTH, np.int32)
            for near in range(ranges[p + _RANGES_AHEAD, 0], ranges[p + _RANGES_AHEAD, 1], LINE):
                bring_to_read(ahead, near)
        row, stop, at = ranges[p]
        while row < stop:
            size, k = min(rows_per_lane - at % rows_per_lane, stop - row), at // rows_per_lane
            begin, end = row, row + size
            if bags != 0:
                begin, end = np.int64(offsets[row]), np.int64(offsets[row + size])
            if with_lengths:
                for i in range(size):
                    lengths[k, rows[k] + i] = 1 if bags == 0 else offsets[row + i + 1] - offsets[row + i]
            for i in range(end - begin):
                ids[ends[k] + i] = values[begin + i]
            ends[k] += end - begin
            rows[k] += size
            row += size
            at += size


@njit(nogil=True, cache=True)
def sort_random(words, num_bits):  # type: ignore[no-untyped-def]  # compiled
    """Sorts ``words`` in rising order; fast if their ``num_bits`` highest bits are evenly spread.

    numpy's sort, on a CPU without AVX-512, takes longer for a row group's order than decoding its rows. A radix sort as
    in ``kernels.updates``, made for numbers of few bits, takes 2.5 times as long.
    """
    shift = np.uint64(64 - num_bits)
    ends = np.zeros((1 << num_bits) + 1, np.int32)
    for word in words:
        ends[np.int64(word >> shift) + 1] += 1
    for bucket in range(1, len(ends)):
        ends[bucket] += ends[bucket - 1]
    out = np.empty(len(words), np.uint64)
    for word in words:
        at = np.int64(word >> shift)
        out[ends[at]] = word
        ends[at] += 1
    for i in range(1, len(out)):  # each word is at most one bucket away from its place
        word, k = out[i], i
        while k > 0 and out[k - 1] > word:
            out[k] = out[k - 1]
            k -= 1
        out[k] = word
    return out
