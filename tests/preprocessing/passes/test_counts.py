"""Counts are those of a dictionary, in whatever pieces the keys come."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.dataset.dictionary import Indexer, JaggedColumns
from dlrm_app.kernels.hashing import mix
from dlrm_app.logs.strings import MISSING_KEY
from dlrm_app.preprocessing.passes.counts import KeyCounts, occurrences

PIECES = st.lists(
    st.tuples(st.lists(st.sampled_from([0, 7, 1 << 40, 1 << 63, (1 << 64) - 1])), st.booleans())
)
"""Keys, the missing one among them, and whether their rows are counted."""


@given(PIECES)
def test_counts_equal_a_dictionarys_in_the_order_of_files(pieces: list[tuple[list[int], bool]]) -> None:
    counts, expected, behind = KeyCounts(), dict[int, int](), []
    for keys, is_counted in pieces:
        spans = np.arange(len(behind), len(behind) + len(keys))[:, None] + [0, 1]
        counts.add(np.array(keys, np.uint64), np.full(len(keys), int(is_counted)), spans)
        behind += keys
        for key in keys:
            expected[key] = expected.get(key, 0) + is_counted
    expected.pop(int(MISSING_KEY), None)
    found = counts.sorted()
    order = sorted(expected, key=lambda key: (int(mix(np.uint64(key))) >> 56, key))
    assert found.keys.tolist() == order
    assert found.buckets.tolist() == [int(mix(np.uint64(key))) >> 56 for key in order]
    assert found.counts.tolist() == [expected[key] for key in order]
    assert [behind[start] for start in found.spans[:, 0]] == order


@given(st.lists(st.integers(0, 3), min_size=16))
def test_occurrences_equal_a_lists(values: list[int]) -> None:
    whole = JaggedColumns.joined([np.array(values, np.uint64)])
    indexed = Indexer(np.full(1, MISSING_KEY)).index(whole)
    distinct = indexed.distinct[0].tolist()
    firsts, counts = occurrences(indexed.codes[0], len(distinct))
    assert firsts.tolist() == [values.index(value) for value in distinct]
    assert counts.tolist() == [values.count(value) for value in distinct]
