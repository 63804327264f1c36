"""Numbers in words."""

import math

from dlrm_app.display.numbers import bytes_text, count, duration, percent, short


def test_numbers_keep_the_digits_that_count() -> None:
    assert [percent(v) for v in (0, 1, 0.4321, 0.0312, 0.00123, 2e-8, None)] == [
        *("0%", "100%", "43%", "3.1%", "0.12%", "<0.0001%", "–"),
    ]
    assert [short(v) for v in (0, 950, 999.9, 12_345, 4.56e6, 2e9, math.nan)] == [
        *("0", "950", "1k", "12.3k", "4.56M", "2B", "–"),
    ]


def test_sizes_spans_and_counts_carry_their_unit() -> None:
    assert [bytes_text(v) for v in (0, 999, 1000, 3.14e6, 2e9, 1.5e12)] == [
        *("0 B", "999 B", "1 kB", "3.14 MB", "2 GB", "1.5 TB"),
    ]
    assert [duration(v) for v in (0, 40, 89, 90, 720, 5400, 12_600)] == [
        *("0 s", "40 s", "89 s", "2 min", "12 min", "1.5 h", "3.5 h"),
    ]
    assert [count(v, "problem") for v in (0, 1, 2000)] == ["0 problems", "1 problem", "2,000 problems"]
