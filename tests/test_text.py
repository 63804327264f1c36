"""Numbers, lists and URLs in words."""

import math

import numpy as np
import pytest

from dlrm_app.text import (
    bytes_text,
    count,
    duration,
    first_lines,
    listed,
    memory_text,
    percent,
    short,
    without_credentials,
)


def test_numbers_keep_the_digits_that_count() -> None:
    assert [percent(v) for v in (0, 1, 0.4321, 0.0312, 0.00123, 2e-8, None)] == [
        *("0%", "100%", "43%", "3.1%", "0.12%", "<0.0001%", "–")
    ]
    assert [short(v) for v in (0, 950, 999.9, 12_345, 4.56e6, 2e9, math.nan)] == [
        *("0", "950", "1k", "12.3k", "4.56M", "2B", "–")
    ]


def test_sizes_spans_and_counts_carry_their_unit() -> None:
    assert [bytes_text(v) for v in (0, 999, 1000, 3.14e6, 2e9, 1.5e12)] == [
        *("0 B", "999 B", "1 kB", "3.14 MB", "2 GB", "1.5 TB")
    ]
    assert [duration(v) for v in (0, 4.2, 40, 90, 720, 12_600, 51 * 3600)] == [
        *("0.0 s", "4.2 s", "40 s", "1 min 30 s", "12 min 00 s", "3 h 30 min", "2 d 03 h")
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


def test_a_list_names_the_first_and_counts_the_rest() -> None:
    assert listed(["a", "b"], 2) == "a, b"
    assert listed([0, 1, 2], 1) == "0 and 2 more"
    assert listed(range(2004), 3) == "0, 1, 2 and 2,001 more"
    assert first_lines(["a", "b"], 2) == ["a", "b"]
    assert first_lines(["a", "b", "c"], 1) == ["a", "… and 2 more"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://KEY:SE/CRET+@bucket/dt=1/*.gz", "s3://bucket/dt=1/*.gz"),
        ("https://me:SECRET@host:80/a.tsv?sig=SECRET&x=1", "https://host:80/a.tsv"),
        ("https://SECRET@host/a.tsv", "https://host/a.tsv"),
        ("train: s3://b/x?X-Amz-Signature=SECRET\nval: x?y=1", "train: s3://b/x\nval: x?y=1"),
        ('{"a": ["s3://k:SECRET@b/x?s=SECRET", "day?=3"]}', '{"a": ["s3://b/x", "day?=3"]}'),
        ("two: ftp://u:SECRET@h/a,ftp://u:SECRET@h/b", "two: ftp://h/a,ftp://h/b"),
    ],
)
def test_urls_are_shown_without_passwords_and_tokens(text: str, shown: str) -> None:
    assert without_credentials(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        *(
            "s3://bucket/part-?.gz",
            "s3://bucket/?/x",
            "abfs://container@account/x",
            "hdfs://me@host:8020/a@b",
        ),
        *("http://host:8080/a@b", "delta://logs/clicks?version=12", "tcp://127.0.0.1:8786", "me:you@home"),
    ],
)
def test_urls_without_credentials_stay_as_they_are(text: str) -> None:
    assert without_credentials(text) == text
