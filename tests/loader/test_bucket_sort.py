"""The sort of random words, against numpy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.loader.bucket_sort import sort_random


@given(st.lists(st.integers(0, 2**64 - 1), max_size=100))
def test_words_of_any_distribution_are_sorted(words: list[int]) -> None:
    assert sort_random(np.array(words, np.uint64)).tolist() == sorted(words)


@pytest.mark.parametrize("size", [1000, 32_768, 100_003])
def test_random_words_are_sorted(size: int) -> None:
    words = np.random.default_rng(size).integers(0, 2**64 - 1, size, np.uint64, endpoint=True)
    given_words = words.copy()
    assert np.array_equal(sort_random(words), np.sort(words))
    assert np.array_equal(words, given_words)
