"""Axes: round ticks that cover the values."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.reports.axis import linear_axis, logit_axis, round_step
from dlrm_app.text import short

numbers = st.floats(-1e9, 1e9).filter(lambda value: value == 0 or abs(value) > 1e-6)


@given(st.lists(numbers, min_size=1, max_size=5), st.booleans(), st.booleans())
def test_an_axis_covers_its_values_with_few_distinct_ticks(
    values: list[float], from_zero: bool, ends_on_ticks: bool
) -> None:
    axis = linear_axis(values, from_zero=from_zero, ends_on_ticks=ends_on_ticks)
    slack = 1e-6 * (axis.high - axis.low)
    assert axis.low < axis.high
    assert axis.low - slack <= min(values)
    assert max(values) <= axis.high + slack
    assert len(axis.ticks) <= 8
    places = [value for value, _ in axis.ticks]
    assert places == sorted(set(places))
    assert all(axis.low - slack <= place <= axis.high + slack for place in places)
    if from_zero:
        assert axis.low - slack <= 0


@given(st.floats(1e-6, 1e9), st.integers(2, 9))
def test_steps_are_round(span: float, num_steps: int) -> None:
    """1, 2, 2.5 or 5 times a power of ten, and no smaller one would do."""
    step = round_step(span, num_steps)
    factor = step / 10 ** math.floor(math.log10(step) + 1e-9)
    assert min(abs(factor - round_one) for round_one in (1, 2, 2.5, 5)) < 1e-6
    assert step * num_steps >= span * (1 - 1e-6)
    assert step * num_steps < span * 2.51


def test_ticks_read_as_people_write_them() -> None:
    assert [label for _, label in linear_axis([0.68, 0.753]).ticks] == [
        "0.68",
        "0.70",
        "0.72",
        "0.74",
        "0.76",
    ]
    assert [label for _, label in linear_axis([0, 1000], label=lambda v, _: short(v)).ticks][-1] == "1k"
    assert [value for value, _ in linear_axis([0, 1], ends_on_ticks=False, smallest_step=1).ticks] == [0, 1]
    assert linear_axis([1.0], bounds=(0, 1)).high == 1.0


@given(st.floats(-15, 10), st.floats(0.01, 20))
def test_logit_ticks_lie_where_their_probability_does(low: float, span: float) -> None:
    axis = logit_axis(low, low + span, "")
    assert len(axis.ticks) >= 2
    for logit, label in axis.ticks:
        assert float(label.rstrip("%")) / 100 == pytest.approx(1 / (1 + math.exp(-logit)), rel=0.01)
