"""Charts draw marks where the axes say."""

import math
import re

import pytest

from dlrm_app.reports.axis import Axis
from dlrm_app.reports.chart import SMALL, Chart, Frame, charts_html

SQUARE = Frame(120.0, 140.0, left=10.0, right=10.0, top=20.0, bottom=20.0)


def chart(frame: Frame = SQUARE) -> Chart:
    """A unit of either axis is 10 pixels."""
    return Chart("a <title>", Axis(0, 10, []), Axis(0, 10, []), note="a <note>", frame=frame)


def test_a_point_lies_where_its_values_do_and_tells_its_text() -> None:
    """From the left, and upwards from the bottom."""
    made = chart()
    made.line([(0, 0), (10, 5)], "first", ["start", "a < b"], "key")
    html = made.html("c")
    assert 'd="M10.0 120.0L110.0 70.0"' in html
    assert 'cx="110.0" cy="70.0" r="4" data-tip="a &lt; b"' in html
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


def test_bins_reach_from_edge_to_edge_and_a_tiny_one_is_seen() -> None:
    made = chart()
    made.steps([0, 5, 10], [2, 4], "first")
    made.bars([0, 5, 10], [1e-9, 0], "second")
    made.bin_tips([0, 5, 10], [2, 4], ["low", "high"])
    html = made.html("c")
    assert 'd="M10.0 120.0V100.0H60.0V80.0H110.0V120.0Z"' in html
    assert re.findall(r'class="bars second" d="M10.0 120.0V([\d.]+)H', html) == ["119.3"]
    assert re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', html) == [("35.0", "100.0"), ("85.0", "80.0")]


@pytest.mark.parametrize("frame", [SQUARE, SMALL], ids=["square", "small"])
def test_charts_on_one_page_share_no_name(frame: Frame) -> None:
    names = re.findall('clipPath id="([^"]+)"', charts_html([chart(frame)] * 3, "a"))
    assert len(set(names)) == 3
