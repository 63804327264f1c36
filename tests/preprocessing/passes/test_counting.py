"""Counts are a dictionary's. Distinct counts: exact up to a bound, close to it beyond, the same in whatever pieces the keys come."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.dataset.dictionary import Columns, Indexer
from dlrm_app.preprocessing.encode.sparse import mix
from dlrm_app.preprocessing.passes.counting import TOTAL_KEYS, UNIT_KEYS, Counts, Sketch, occurrences
from dlrm_app.preprocessing.read.fields import MISSING_KEY

PIECES = st.lists(
    st.tuples(st.lists(st.sampled_from([0, 7, 1 << 40, 1 << 63, (1 << 64) - 1])), st.booleans())
)
"""Keys, the missing one among them, and whether their rows are counted."""


@given(PIECES)
def test_counts_are_those_of_a_dictionary_in_the_order_of_files(pieces: list[tuple[list[int], bool]]) -> None:
    counts, expected, behind = Counts(), dict[int, int](), []
    for keys, is_counted in pieces:
        spans = np.arange(len(behind), len(behind) + len(keys))[:, None] + [0, 1]
        counts.add(np.array(keys, np.uint64), np.full(len(keys), int(is_counted)), spans)
        behind += keys
        for key in keys:
            expected[key] = expected.get(key, 0) + is_counted
    expected.pop(int(MISSING_KEY), None)
    columns, spans = counts.sorted()
    order = sorted(expected, key=lambda key: (int(mix(np.uint64(key))) >> 56, key))
    assert columns["key"].tolist() == order
    assert columns["bucket"].tolist() == [int(mix(np.uint64(key))) >> 56 for key in order]
    assert columns["count"].tolist() == [expected[key] for key in order]
    assert [behind[start] for start in spans[:, 0]] == order


@given(st.lists(st.integers(0, 3), min_size=16))
def test_occurrences_are_those_of_a_list(values: list[int]) -> None:
    whole = Columns.joined([np.array(values, np.uint64)])
    indexed = Indexer(np.full(1, MISSING_KEY)).index(whole)
    distinct = indexed.distinct[0].tolist()
    firsts, counts = occurrences(indexed.codes[0], len(distinct))
    assert firsts.tolist() == [values.index(value) for value in distinct]
    assert counts.tolist() == [values.count(value) for value in distinct]


def keys_upto(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.uint64) * np.uint64(7919)


def sketch_of(keys: np.ndarray, max_keys: int) -> Sketch:
    sketch = Sketch(max_keys)
    sketch.add(keys)
    return sketch


def test_few_keys_are_counted_exactly_and_missing_ones_not_at_all() -> None:
    sketch = Sketch(TOTAL_KEYS)
    for _ in range(3):
        sketch.add(np.concatenate([keys_upto(20_000), np.full(5, MISSING_KEY)]))
    assert sketch.registers is None
    assert sketch.distinct() == 20_000


def test_a_feature_is_exact_up_to_the_bound_and_no_further() -> None:
    assert sketch_of(keys_upto(512), 512).registers is None
    beyond = sketch_of(keys_upto(513), 512).registers
    assert beyond is not None
    kept = sketch_of(keys_upto(513), 1024)
    kept.keep(512)
    assert np.array_equal(kept.registers, beyond)


@pytest.mark.parametrize("count", [40_000, 1_000_000])
def test_many_keys_are_estimated_within_four_standard_errors(count: int) -> None:
    sketch = sketch_of(keys_upto(count), UNIT_KEYS)
    assert sketch.registers is not None
    assert abs(sketch.distinct() / count - 1) < 4 * 0.0081


@pytest.mark.parametrize("count", [500, 1000, 70_000])
def test_pieces_join_to_the_whole_in_any_order(count: int) -> None:
    keys = keys_upto(count)
    pieces = [sketch_of(keys[place::step], max_keys=512) for place in range(7) for step in (7, 3)]
    whole = sketch_of(keys, 512 if any(piece.registers is not None for piece in pieces) else TOTAL_KEYS)
    for order in (pieces, pieces[::-1]):
        file, total = io.BytesIO(), Sketch(TOTAL_KEYS)
        for piece in order:
            piece.write(file)
        file.seek(0)
        for _ in order:
            total.join(file)
        assert np.array_equal(total.registers, whole.registers)
        assert total.distinct() == whole.distinct()


def test_expected_collisions_are_near_the_counted_ones() -> None:
    counted, expected = (sketch_of(keys_upto(30_000), size).collisions(50_001) for size in (1 << 20, 16))
    assert counted != expected
    assert abs(counted - expected) < 0.05 * counted
