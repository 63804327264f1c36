"""Axes: round ticks that cover the values."""

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.reports.chart import Axis, Chart, charts_html, linear_axis, round_step
from dlrm_app.text import short

numbers = st.floats(-1e9, 1e9).filter(lambda value: value == 0 or abs(value) > 1e-6)


@given(st.lists(numbers, min_size=1, max_size=5), st.booleans())
def test_an_axis_covers_its_values_with_few_distinct_ticks(values: list[float], from_zero: bool) -> None:
    axis = linear_axis(values, from_zero=from_zero)
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


@given(st.floats(1e-6, 1e9))
def test_steps_are_round(least: float) -> None:
    """1, 2 or 5 times a power of ten, and no smaller one would do."""
    step = round_step(least)
    assert f"{step:.6e}"[0] in "125"
    assert least * (1 - 1e-6) <= step < least * 2.51


def test_ticks_read_as_people_write_them() -> None:
    assert [label for _, label in linear_axis([0.71, 0.74]).ticks] == ["0.71", "0.72", "0.73", "0.74"]
    assert [label for _, label in linear_axis([0, 1000], write=short).ticks][-1] == "1k"


def chart() -> Chart:
    return Chart("a <title>", Axis(0, 10, []), Axis(0, 10, []), note="a <note>")


def test_a_point_lies_where_its_values_do_and_tells_its_text() -> None:
    """From the left, and upwards from the bottom."""
    made = chart()
    made.line([(0, 0), (10, 5)], "first", ["start", "a < b"], "key")
    html = made.html("c")
    assert 'd="M52.0 210.0L388.0 110.0"' in html
    assert 'cx="388.0" cy="110.0" r="4" data-tip="a &lt; b"' in html
    assert html.count('class="dot first"') == 2
    assert '<i class="swatch first"></i>key' in html
    assert "a &lt;title&gt;" in html
    assert "a &lt;note&gt;" in html


def test_a_line_is_broken_where_a_value_is_not_finite() -> None:
    made = chart()
    made.line([(0, 1), (1, 1), (2, math.nan), (3, 1), (4, 1), (5, math.inf), (6, 1)], "first", "abcdefg")
    html = made.html("c")
    assert html.count('class="line first"') == 2
    assert re.findall('data-tip="(.)"', html) == ["a", "b", "d", "e", "g"]


def test_charts_on_one_page_share_no_name() -> None:
    names = re.findall('clipPath id="([^"]+)"', charts_html([chart()] * 3, "a"))
    assert len(set(names)) == 3
