"""The profiler's trace: a file as Perfetto reads it, of the steps that were asked for."""

import json
import logging
from pathlib import Path

import pytest

from tests.loader.dataset_fixture import write_dataset
from tests.small_run import train_here


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clicks") / "dataset"
    write_dataset(folder, rows={"train": 2100, "val": 100})
    return folder


def test_a_trace_holds_four_steps_and_a_train_event_its_parts(dataset: Path, tmp_path: Path) -> None:
    train_here(tmp_path / "run", f"data.path={dataset}", "profiler=true", "report.enabled=true")
    trace = json.loads((tmp_path / "run" / "trace-rank-0.json").read_text())
    names = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
    assert sum(name.startswith("## forward") for name in names) == 4
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    train = [event for event in map(json.loads, lines) if event["event"] == "train"]
    assert all(
        {"lookup", "mlps", "mlps_backward", "table_update"} <= set(event["step_ms"]) for event in train
    )
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Where a step&#x27;s time goes" in page or "Where a step's time goes" in page


def test_a_run_too_short_for_a_trace_says_so(
    dataset: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    train_here(tmp_path / "run", f"data.path={dataset}", "profiler=true", "trainer.max_steps=3")
    assert not list((tmp_path / "run").glob("trace*"))
    assert "records steps 11 to 14, and this start took 3" in caplog.text
