"""Numbers of distinct values: exact up to a bound, estimated beyond, the same in whatever pieces the keys come."""

import io

import numpy as np
import pytest

from dlrm_app.logs.strings import MISSING_KEY
from dlrm_app.preprocessing.passes.distinct import TOTAL_KEYS, UNIT_KEYS, Sketch


def keys_upto(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.uint64) * np.uint64(7919)


def sketch_of(keys: np.ndarray, max_keys: int) -> Sketch:
    sketch = Sketch(max_keys)
    sketch.add(keys)
    return sketch


def test_few_keys_are_counted_exactly_without_missing_ones() -> None:
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
