"""Lists that are filled up, and times in another unit, are reported; sound ones are not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlrm_app.logs.first_rows import padding_fault, time_fault
from dlrm_app.logs.raw_columns import RawList
from dlrm_app.logs.spec import LogColumn
from tests.preprocessing.running import run

NOW = 1_772_000_000 + np.arange(500) * 1000.0
UNITS = {"seconds": 1.0, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
LIST = LogColumn("x", "sparse", "integer", separator="|")


@pytest.mark.parametrize("kind", UNITS)
@pytest.mark.parametrize("written", UNITS)
def test_times_of_another_unit_are_found_with_their_unit(kind: str, written: str) -> None:
    read = NOW * UNITS[written] / UNITS[kind]
    fault = time_fault(read, LogColumn("at", "time", kind))
    assert (fault is None) == (kind == written)
    assert fault is None or fault.endswith(f"take kind: {written}")


def test_times_of_two_units_are_found() -> None:
    column = LogColumn("at", "time", "milliseconds")
    for share in (0.02, 0.5, 0.9):
        mixed = np.where(np.arange(500) < share * 500, NOW / 1000, NOW)
        assert "two units" in (time_fault(mixed, column) or "")


@pytest.mark.parametrize(
    "times",
    [
        NOW,
        np.where(np.arange(500) % 3, NOW, 0.0),
        np.where(np.arange(500) % 3, NOW, -1.0),
        np.where(np.arange(500) % 3, NOW, 253_402_214_400.0),
        np.where(np.arange(500) % 3, NOW, np.nan),
        -NOW,
        np.full(500, np.nan),
        np.empty(0),
    ],
)
def test_sound_times_are_no_fault(times: Any) -> None:
    assert time_fault(times, LogColumn("at", "time", "seconds")) is None


def lists_of(rows: list[list[int]]) -> RawList:
    ends = np.cumsum([0, *map(len, rows)])
    return RawList(
        ends,
        np.array([key for row in rows for key in row], np.int64).view(np.uint64),
        np.zeros((0, 2), np.int64),
    )


@pytest.mark.parametrize("front", [True, False])
@pytest.mark.parametrize("longest", [5, 6])
def test_padded_lists_are_found(front: bool, longest: int) -> None:
    draw = np.random.default_rng(1)
    rows = [draw.integers(1, 200, draw.integers(0, longest + 1)).tolist() for _ in range(400)]
    filled = [[0] * (6 - len(each)) + each if front else each + [0] * (6 - len(each)) for each in rows]
    fault = padding_fault(lists_of(filled), LIST)
    assert fault is not None
    assert 'padding: "0"' in fault


def test_lists_without_padding_are_no_fault() -> None:
    for seed in range(20):
        draw = np.random.default_rng(seed)
        few = [draw.integers(0, 3, 6).tolist() for _ in range(400)]
        many = [draw.integers(0, 200, draw.integers(0, 9)).tolist() for _ in range(400)]
        marked = [[1, *draw.integers(2, 200, 5).tolist()] for _ in range(400)]
        ones = [draw.integers(0, 2, 1).tolist() for _ in range(400)]
        skewed = [np.minimum(draw.zipf(1.5, 6), 500).tolist() for _ in range(400)]
        assert [padding_fault(lists_of(rows), LIST) for rows in (few, many, marked, ones, skewed)] == [
            None
        ] * 5


def test_both_are_said_before_the_work(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hist = [[0, 0, 5, row % 9 + 1] if row % 2 else [0, 0, 0, 7] for row in range(200)]
    table = {"y": [0, 1] * 100, "at": [1_772_000_000 + row for row in range(200)], "hist": hist}
    pq.write_table(pa.table(table), tmp_path / "log.parquet")
    columns = [
        {"name": "y", "role": "label"},
        {"name": "at", "role": "time", "kind": "milliseconds"},
        {"name": "hist", "role": "sparse", "kind": "integer", "separator": "|", "last": 2},
    ]
    derived = [{"name": "hour", "kind": "hour", "of": "at"}]
    (tmp_path / "a.yaml").write_text(json.dumps({"name": "a", "columns": columns, "derived": derived}))
    run(tmp_path / "out", f"dataset={tmp_path}/a.yaml", f"input.train={tmp_path}/log.parquet")
    assert "at: all times lie in January 1970: take kind: seconds" in caplog.text
    assert "hist: most lists have 4 elements, and 100% begin with the same value" in caplog.text
