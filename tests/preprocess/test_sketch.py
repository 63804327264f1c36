"""Distinct counts: exact up to a bound, close to it beyond, and the same in whatever pieces the keys come."""

from pathlib import Path

import numpy as np
import pytest

from dlrm_app.preprocess.hashing import MISSING_KEY
from dlrm_app.preprocess.sketch import TOTAL_KEYS, UNIT_KEYS, Sketch, SketchFile, count_collisions


def keys_upto(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.uint64) * np.uint64(7919)


def test_few_keys_are_counted_exactly_and_missing_ones_not_at_all() -> None:
    sketch = Sketch(TOTAL_KEYS)
    for _ in range(3):
        sketch.add(np.concatenate([keys_upto(20_000), np.full(5, MISSING_KEY)]))
    assert (sketch.exact, sketch.distinct()) == (True, 20_000)
    assert sorted(sketch.keys().tolist()) == keys_upto(20_000).tolist()


@pytest.mark.parametrize("count", [40_000, 1_000_000])
def test_many_keys_are_estimated_within_four_standard_errors(count: int) -> None:
    sketch = Sketch(UNIT_KEYS)
    sketch.add(keys_upto(count))
    assert not sketch.exact
    assert abs(sketch.distinct() / count - 1) < 4 * 0.0081


@pytest.mark.parametrize("count", [1000, 70_000])
def test_pieces_join_to_the_whole_in_any_order(tmp_path: Path, count: int) -> None:
    keys = keys_upto(count)
    pieces = []
    for place in range(7):
        sketch = Sketch(max_keys=512)
        sketch.add(keys[place::7])
        sketch.add(keys[place::3])
        path = tmp_path / f"{place}.sketch"
        SketchFile(path, 2).write([Sketch(TOTAL_KEYS), sketch])
        pieces.append(SketchFile(path, 2))
    totals = []
    for order in (pieces, pieces[::-1]):
        total = Sketch(TOTAL_KEYS)
        for piece in order:
            piece.join_into(total, 1)
        totals.append(total)
    whole = Sketch(max_keys=512)
    whole.add(keys)
    for total in totals:
        assert np.array_equal(total.registers, whole.registers)
        assert total.exact == totals[0].exact
        assert total.distinct() == totals[0].distinct()


def test_expected_collisions_are_near_the_counted_ones() -> None:
    exact, estimated = Sketch(1 << 20), Sketch(16)
    for sketch in (exact, estimated):
        sketch.add(keys_upto(30_000))
    assert exact.exact
    assert not estimated.exact
    counted, expected = count_collisions(exact, 50_001), count_collisions(estimated, 50_001)
    assert abs(counted - expected) < 0.05 * counted
