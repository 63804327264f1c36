"""Numbered columns beside Python's own dict: the same numbers in the same order, up to the limit and not beyond it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dlrm_app.dataset.dictionary import JaggedColumns, index_columns, repeating

MISSING = 7


def numbered(values: NDArray[np.uint64]) -> tuple[list[int], list[int]]:
    """(the number of each value, the distinct values in the order of their first occurrences)."""
    numbers: dict[int, int] = {}
    codes = [numbers.setdefault(value, len(numbers)) for value in values.tolist()]
    return codes, list(numbers)


columns_of_values = st.lists(
    st.lists(st.one_of(st.integers(0, 9), st.integers(0, 2**64 - 1)), max_size=60), min_size=1, max_size=5
)


@given(columns_of_values, st.data())
def test_values_are_numbered_by_first_occurrence(drawn: list[list[int]], data: st.DataObject) -> None:
    values = [np.array(column, np.uint64) for column in drawn]
    limits = np.array([data.draw(st.integers(0, len(column) + 1)) for column in drawn], np.int64)
    indexed = index_columns(JaggedColumns.joined(values), limits, np.full(len(values), MISSING, np.uint64))
    for c, column in enumerate(values):
        codes, distinct = numbered(column)
        if not 0 < len(distinct) <= limits[c]:
            assert not len(indexed.distinct[c])
            continue
        assert indexed.distinct[c].tolist() == distinct
        assert indexed.codes[c].tolist() == codes
        assert indexed.num_missing[c] == (column == MISSING).sum()


@pytest.mark.parametrize("count", [8191, 8192, 65_534, 65_535])
def test_distinct_values_fit_up_to_the_limit(count: int) -> None:
    rng = np.random.default_rng(count)
    distinct = rng.permutation(np.arange(count, dtype=np.uint64) * 3)
    values = np.concatenate([distinct, rng.choice(distinct, 5000)])
    columns, missing = JaggedColumns.joined([values]), np.zeros(1, np.uint64)
    indexed = index_columns(columns, np.array([count]), missing)
    assert np.array_equal(indexed.distinct[0], distinct)
    assert np.array_equal(distinct[indexed.codes[0]], values)
    assert not len(index_columns(columns, np.array([count - 1]), missing).distinct[0])


def test_repeating_finds_columns_with_equal_last_values() -> None:
    same, different = np.arange(300, dtype=np.uint64), np.arange(300, dtype=np.uint64)
    same[-1] = same[-256]
    columns = JaggedColumns.joined([same, different, same[:0]])
    lengths = repeating(columns.values, columns.begins, columns.ends)
    assert lengths.tolist() == [300, 0, 0]
