"""Numbers in words."""

import math

import numpy as np
import pytest

from dlrm_app.text import bytes_text, count, duration, memory_text, percent, short


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
    assert [duration(v) for v in (0, 4.2, 40, 90, 720, 12_600, 51 * 3600)] == [
        *("0.0 s", "4.2 s", "40 s", "1 min 30 s", "12 min 00 s", "3 h 30 min", "2 d 03 h"),
    ]
    assert [count(v, "problem") for v in (0, 1, 2000)] == ["0 problems", "1 problem", "2,000 problems"]


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0"),
        (12, "12 B"),
        (1536, "1.5 KiB"),
        (20 * 2**20, "20 MiB"),
        (2**30, "1.0 GiB"),
        (3109.5 * 2**30, "3,109.5 GiB"),
        (np.float64(512), "512 B"),
    ],
)
def test_memory_is_in_powers_of_two(num_bytes: float, text: str) -> None:
    assert memory_text(num_bytes) == text
