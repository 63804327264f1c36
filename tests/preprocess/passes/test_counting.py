"""Distinct counts: exact up to a bound, close to it beyond, and the same in whatever pieces the keys come."""

from pathlib import Path

import numpy as np
import pytest

from dlrm_app.dataset.dictionary import Columns
from dlrm_app.preprocess.passes.counting import (
    TOTAL_KEYS,
    UNIT_KEYS,
    Sketches,
)
from dlrm_app.preprocess.read.fields import MISSING_KEY


def keys_upto(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.uint64) * np.uint64(7919)


def sketch_of(keys: np.ndarray, max_keys: int) -> Sketches:
    """Of one feature with these keys."""
    sketches = Sketches(1, max_keys)
    sketches.add(Columns.joined([keys]), [0])
    return sketches


def test_few_keys_are_counted_exactly_and_missing_ones_not_at_all() -> None:
    sketches = Sketches(3, TOTAL_KEYS)
    for _ in range(3):
        keys = np.concatenate([keys_upto(20_000), np.full(5, MISSING_KEY)])
        sketches.add(Columns.joined([keys, keys[:7]]), [2, 0])
    assert [sketches.is_exact(feature) for feature in range(3)] == [True] * 3
    assert [sketches.distinct(feature) for feature in range(3)] == [7, 0, 20_000]
    assert sorted(sketches.keys(2).tolist()) == keys_upto(20_000).tolist()


def test_a_feature_is_exact_up_to_the_bound_and_no_further() -> None:
    assert sketch_of(keys_upto(512), 512).is_exact(0)
    assert not sketch_of(keys_upto(513), 512).is_exact(0)
    kept = sketch_of(keys_upto(513), 1024)
    kept.keep(512)
    assert not kept.is_exact(0)
    assert np.array_equal(kept.registers, sketch_of(keys_upto(513), 512).registers)


@pytest.mark.parametrize("count", [40_000, 1_000_000])
def test_many_keys_are_estimated_within_four_standard_errors(count: int) -> None:
    sketches = sketch_of(keys_upto(count), UNIT_KEYS)
    assert not sketches.is_exact(0)
    assert abs(sketches.distinct(0) / count - 1) < 4 * 0.0081


@pytest.mark.parametrize("count", [1000, 70_000])
def test_pieces_join_to_the_whole_in_any_order(tmp_path: Path, count: int) -> None:
    keys = keys_upto(count)
    pieces = []
    for place in range(7):
        sketches = Sketches(3, max_keys=512)
        for part in (keys[place::7], keys[place::3]):
            sketches.add(Columns.joined([part, part[:9]]), [1, 2])
        path = tmp_path / f"{place}.sketch"
        sketches.write(path)
        pieces.append(path)
    totals = []
    for order in (pieces, pieces[::-1]):
        total = Sketches(3, TOTAL_KEYS)
        for piece in order:
            total.join(piece)
        totals.append(total)
    whole = sketch_of(keys, 512)
    few = {
        key for place in range(7) for part in (keys[place::7], keys[place::3]) for key in part[:9].tolist()
    }
    for total in totals:
        assert np.array_equal(total.registers[1], whole.registers[0])
        assert total.is_exact(1) == totals[0].is_exact(1)
        assert total.distinct(1) == totals[0].distinct(1)
        assert set(total.keys(2).tolist()) == few


def test_expected_collisions_are_near_the_counted_ones() -> None:
    exact, estimated = sketch_of(keys_upto(30_000), 1 << 20), sketch_of(keys_upto(30_000), 16)
    assert exact.is_exact(0)
    assert not estimated.is_exact(0)
    counted, expected = exact.collisions(0, 50_001), estimated.collisions(0, 50_001)
    assert abs(counted - expected) < 0.05 * counted
