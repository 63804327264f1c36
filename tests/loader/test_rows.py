"""Ordering decoded rows and copying ranges of them together, against lists of rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import Bags
from dlrm_app.loader.rows import (
    Columns,
    Ranges,
    Rows,
    arrange,
    copy_rows,
    count_rows,
    side_by_side,
    sort_random,
)

Row = tuple[list[float], list[list[int]], list[float]]
"""Dense values, ids, and the label, followed by the weight if rows have any."""
NUM_DENSE = 2
MULTI_HOT = [False, True, False, True]


@st.composite
def decoded(draw: st.DrawFn, is_weighted: bool = False) -> Columns:
    size = draw(st.integers(0, 20))
    generator = np.random.default_rng(draw(st.integers(0, 1000)))
    features: list[NDArray[np.int32] | Bags] = []
    for is_multi_hot in MULTI_HOT:
        lengths = generator.integers(0, 4, size) if is_multi_hot else np.ones(size, int)
        ids = generator.integers(0, 9, lengths.sum()).astype(np.int32)
        offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)
        features.append(Bags(ids, offsets) if is_multi_hot else ids)
    return Columns(
        list(generator.random((NUM_DENSE, size), np.float32)),
        features,
        [
            generator.integers(0, 2, size).astype(np.uint8),
            *([generator.random(size, np.float32)] if is_weighted else []),
        ],
    )


EITHER = st.booleans()


def as_list(columns: Columns) -> list[Row]:
    return [
        (
            [float(column[row]) for column in columns.dense],
            [ids_of(feature, row) for feature in columns.features],
            [float(values[row]) for values in columns.supervision],
        )
        for row in range(len(columns))
    ]


def ids_of(feature: NDArray[np.int32] | Bags, row: int) -> list[int]:
    if isinstance(feature, Bags):
        return feature.values[feature.offsets[row] : feature.offsets[row + 1]].tolist()
    return [int(feature[row])]


def copied(ranges: Ranges, num_dense: int, num_features: int, padding: int = 0) -> list[list[Row]]:
    """The rows of each batch of ``ranges`` as the arrays of batches hold them."""
    given = ranges.addresses(num_features), ranges.ranges, ranges.rows_per_lane
    num_rows, num_ids = count_rows(*given, ranges.num_batches)
    num_batches, size = len(num_rows), max(num_rows, default=0) + padding
    num_beside = ranges.rows[0].supervision.shape[1] if ranges.rows else 1
    dense, beside = (
        np.empty((num_batches, size, num_dense), np.float32),
        np.empty((num_batches, num_beside, size), np.float32),
    )
    ids, lengths = np.empty(num_ids.sum(), np.int32), np.empty((num_batches, num_features, size), np.int32)
    begins = num_ids.cumsum().reshape(num_ids.shape) - num_ids
    copy_rows(*given, dense, beside, ids, begins, lengths)
    again = np.empty_like(ids)
    copy_rows(*given, dense, beside, again, begins, lengths[:, :, :0])
    assert np.array_equal(ids, again)
    batches = []
    for k, count in enumerate(num_rows):
        ends = begins[k, 0] + lengths[k, :, :count].reshape(-1).cumsum()
        starts = ends - lengths[k, :, :count].reshape(-1)
        bags = [ids[start:end].tolist() for start, end in zip(starts, ends, strict=True)]
        batches.append(
            [(dense[k, row].tolist(), bags[row::count], beside[k, :, row].tolist()) for row in range(count)]
        )
    return batches


def whole(rows: Rows) -> Ranges:
    return Ranges([rows], np.array([[0, len(rows), 0]]), max(1, len(rows)), 1)


@given(EITHER.flatmap(decoded), st.data())
def test_rows_are_put_in_any_order(columns: Columns, data: st.DataObject) -> None:
    """Without an order in that of the columns. Old memory is used if it is large enough."""
    order = data.draw(st.permutations(range(len(columns))))
    memory = np.full(data.draw(st.integers(0, 500)), -1, np.int32)
    rows = arrange(columns, np.array(order, np.int64), memory)
    expected = as_list(columns)
    assert copied(whole(arrange(columns, None)), NUM_DENSE, len(MULTI_HOT)) == [expected]
    assert copied(whole(rows), NUM_DENSE, len(MULTI_HOT)) == [[expected[row] for row in order]]
    num_words = len(order) * (NUM_DENSE + len(columns.supervision)) + sum(
        len(ids) for _, bags, _ in expected for ids in bags
    )
    assert (rows.memory is memory) == (len(memory) >= num_words + 2 * (len(order) + 1))
    assert np.shares_memory(rows.dense, rows.memory) or not len(rows)


@given(
    EITHER.flatmap(
        lambda each: st.lists(st.lists(decoded(each), min_size=1, max_size=3), min_size=1, max_size=3)
    ),
    st.data(),
)
def test_ranges_are_dealt_to_batches(lanes: list[list[Columns]], data: st.DataObject) -> None:
    """Every batch takes a few rows of every lane, in the order of the lanes; arrays may have room for more rows."""
    per_lane, num_batches = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    parts, expected = [], [[] for _ in range(num_batches)]
    for lane in lanes:
        held, ranges, rows_of_lane = [], [], []
        for columns in lane:
            left = per_lane * num_batches - len(rows_of_lane)
            first = data.draw(st.integers(0, len(columns)))
            last = data.draw(st.integers(first, min(len(columns), first + left)))
            held.append(arrange(columns, None))
            ranges.append([first, last, len(rows_of_lane)])
            rows_of_lane += as_list(columns)[first:last]
        parts.append(Ranges(held, np.array(ranges), per_lane, num_batches))
        for k, batch in enumerate(expected):
            batch += rows_of_lane[k * per_lane : (k + 1) * per_lane]
    padding = data.draw(st.integers(0, 3))
    assert copied(side_by_side(parts), NUM_DENSE, len(MULTI_HOT), padding) == expected


@given(st.lists(st.integers(0, 2**64 - 1), max_size=100))
def test_words_of_any_distribution_are_sorted(words: list[int]) -> None:
    num_bits = max(1, len(words).bit_length() - 1)
    assert sort_random(np.array(words, np.uint64), num_bits).tolist() == sorted(words)


@pytest.mark.parametrize("size", [1000, 32_768, 100_003])
def test_random_words_are_sorted(size: int) -> None:
    words = np.random.default_rng(size).integers(0, 2**64 - 1, size, np.uint64, endpoint=True)
    given_words = words.copy()
    assert np.array_equal(sort_random(words, size.bit_length() - 1), np.sort(words))
    assert np.array_equal(words, given_words)
