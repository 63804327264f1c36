"""What measures steps: samples a second, the largest part, and a trace as Perfetto reads it."""

import json
import math
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.distributed.runtime import Runtime
from dlrm_app.runs.checkpoint.progress import Progress
from dlrm_app.training import instruments
from dlrm_app.training.instruments import LossMeter, Throughput, largest_part
from tests.loader.dataset_fixture import write_dataset
from tests.small_run import train_here


def test_the_largest_part_is_named_with_its_share() -> None:
    assert largest_part({"mlps": 1.0, "mlps_backward": 3.0}) == "MLPs backward 75%"
    assert largest_part({}) == ""


@given(st.lists(st.floats(0, 100, width=32), min_size=1, max_size=30), st.integers(1, 8), st.integers(0, 29))
def test_mean_losses_are_equal_to_the_bit_whenever_saved(
    losses: list[float], kept: int, saved_after: int
) -> None:
    """As added up in double precision, step after step."""
    runtime = Runtime(0, 0, 1, 1, "cpu", num_threads=1)
    expected = torch.zeros((), dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(instruments, "MAX_LOSSES", kept)
        meter = LossMeter(runtime)
        for step, loss in enumerate(losses, 1):
            meter.add(torch.tensor(loss), step)
            expected += torch.tensor(loss)
            if step == saved_after:
                saved, meter = meter.state(), LossMeter(runtime)
                meter.load_state(saved)
        assert meter.first_bad_step() is None
        assert meter.read() == float(expected) / len(losses)
        assert meter.mean_of_epoch() == float(expected) / len(losses)


def test_the_first_of_several_bad_steps_is_reported() -> None:
    meter = LossMeter(Runtime(0, 0, 1, 1, "cpu", num_threads=1))
    for step, loss in ((5, 0.5), (6, math.inf), (7, math.nan)):
        meter.add(torch.tensor(loss), step)
    assert meter.first_bad_step() == 6


def test_excluded_time_changes_neither_speed_nor_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    throughput, progress = Throughput(), Progress()
    for _ in range(4):
        now[0] += 0.5
        throughput.add_step()
    with throughput.paused(progress):
        now[0] += 30  # a save
    assert progress.train_seconds == 2
    now[0] += 0.5
    throughput.add_step()
    assert throughput.seconds_per_step() == 0.5


def test_a_trace_holds_four_steps_and_a_train_event_its_parts(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", rows={"train": 2100, "val": 100})
    train_here(tmp_path / "run", f"data.path={tmp_path}/data", "profiler=true", "report.enabled=true")
    trace = json.loads((tmp_path / "run" / "trace-rank-0.json").read_text())
    names = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
    assert sum(name.startswith("## forward") for name in names) == 4
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    train = [event for event in map(json.loads, lines) if event["event"] == "train"]
    assert all(
        {"lookup", "mlps", "mlps_backward", "table_update"} <= set(event["step_ms"])
        for event in train
        if event["step"] >= 3
    )
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Where a step&#x27;s time goes" in page or "Where a step's time goes" in page
