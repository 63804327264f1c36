"""The floor of a step, against arithmetic written out."""

import pytest

from dlrm_app.training.gpu_check.speed import step_floor


def test_the_floor_is_what_must_be_moved_and_multiplied() -> None:
    """1,000 rows of 2 features of width 4: 7 × 8,000 floats; 10 weights; 3 × 3 products of width 4, thrice."""
    memory_alone = step_floor(1000, 2, 4, 10, (1.0, float("inf")))
    products_alone = step_floor(1000, 2, 4, 10, (float("inf"), 1.0))
    assert memory_alone == 7 * 8_000 * 4
    assert products_alone == pytest.approx(6 * 1000 * 10 + 3 * 2 * 1000 * 9 * 4)
    assert step_floor(1000, 2, 4, 10, (1.0, 1.0)) == pytest.approx(memory_alone + products_alone)
