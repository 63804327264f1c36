"""report.html tells what the run folder tells, whatever the run came to."""

import json
import math
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from dlrm_app.errors import ConfigError
from dlrm_app.evaluation.importance_result import ColumnImportance, Importance, PairImportance
from dlrm_app.evaluation.result import (
    EvaluationResult,
    Interval,
    ModelResult,
)
from dlrm_app.files import write_json
from dlrm_app.reports.run_page import write_report
from tests.refusals import refused
from tests.training.run_fixture import evaluation, read_report, write_run


def test_its_numbers_equal_those_of_metrics_jsonl(tmp_path: Path) -> None:
    """Every number of every evaluation and of the result."""
    events = write_run(tmp_path / "run")
    report = read_report(write_report(tmp_path / "run"))
    shown = {text.replace(",", "") for text in report.numbers}
    for event in events:
        if event["event"] == "eval":
            decimals = {
                "auc": 5,
                "logloss": 5,
                "ne": 4,
                "calibration": 4,
                "num_samples": 0,
                "positives": 0,
                "seconds": 2,
            }
            assert {f"{event[key]:.{number}f}" for key, number in decimals.items()} <= shown
    assert {"4.32k", "12 s"} <= shown  # of 4321.5 samples/s and 12.5 s
    train = [event for event in events if event["event"] == "train"]
    for event in train:
        assert f"step {event['step']}, training: {event['loss']:.5f}" in report.tips
    assert "Finished after 40 steps; 2 ranks on cpu" in report.text
    assert "best reachable 0.80000" in report.text


def test_the_headline_is_the_last_test_and_the_best_val_result(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    with (tmp_path / "run/metrics.jsonl").open("a") as file:
        for event in [evaluation("val", 40, auc=0.61), evaluation("test", 40, auc=0.62)]:
            file.write(json.dumps(event) + "\n")
    report = read_report(write_report(tmp_path / "run"))
    assert (report.numbers[0], report.numbers[4]) == ("0.62000", f"{0.7 + 0.00123 * 40:.5f}")
    assert "best val AUC" in report.text


@pytest.mark.parametrize(
    ("num_steps", "splits", "num_charts"),
    [(40, ("val", "test"), 7), (1, ("test",), 7), (40, (), 2), (1, (), 2), (0, (), 0), (3, ("val",), 4)],
)
def test_a_page_without_some_results_shows_the_others(
    num_steps: int, splits: tuple[str, ...], num_charts: int, tmp_path: Path
) -> None:
    """Without val or test, with one step, with none: fewer charts, and no empty ones."""
    write_run(tmp_path / "run", num_steps=num_steps, splits=splits)
    report = read_report(write_report(tmp_path / "run"))
    assert report.num_charts == num_charts
    assert ("Predictions on" in report.text) == bool(splits)
    assert ("No steps were logged" in report.text) == (num_steps == 0)


def test_an_undefined_metric_is_a_dash(tmp_path: Path) -> None:
    """One class only: no AUC, no ROC curve; a loss that became nan leaves a gap, not a crash."""
    events = write_run(tmp_path / "run", splits=("val",), num_steps=30)
    for event in events:
        if event["event"] == "eval":
            event.update(auc=math.nan, ne=math.nan, calibration=math.nan)
        if event["event"] == "train" and event["step"] in (1, 17, 30):
            event["loss"] = math.nan if event["step"] != 30 else math.inf
    (tmp_path / "run/metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    curves = json.loads((tmp_path / "run/curves.json").read_text())
    curves["val"]["roc"] = None
    (tmp_path / "run/curves.json").write_text(json.dumps(curves))
    report = read_report(write_report(tmp_path / "run"))
    assert "–" in report.numbers
    assert "ROC" not in report.text.replace("under the ROC", "")
    assert "NaN" not in report.text


def test_the_columns_that_matter_join_the_page(tmp_path: Path) -> None:
    """From a file of dlrm-evaluate about this run; one about another run is refused."""
    write_run(tmp_path / "run")
    bounds = Interval(0.8, 0.01, 0.78, 0.82)
    columns = [
        ColumnImportance(name, *falls)
        for name, falls in (("shop", (0.2, 0.1, 0.3)), ("age", (0.1, 0.05, 0.15)))
    ]
    pairs = [PairImportance(["shop", "age"], 0.5, 0.4, 0.6)]
    for name, metric in (("run", "auc"), ("loss", "logloss"), ("other", "auc")):
        found = Importance(500, 3, columns, pairs, metric)
        run = "other" if name == "other" else "run"
        checkpoint = str(tmp_path / run / "checkpoints" / "step-000000040")
        model = ModelResult(checkpoint, 40, {}, bounds, importance=found)
        result = EvaluationResult("data", "", "test", None, 0.95, [model], None)
        write_json(tmp_path / f"{name}.json", asdict(result))
    report = read_report(write_report(tmp_path / "run", importance=tmp_path / "run.json"))
    assert all(text in report.text for text in ("+0.20000", "+0.10000 to +0.30000", "of 3 on 500 rows"))
    assert "shop and age tell each other: the AUC falls by 0.50000" in report.text
    by_loss = read_report(write_report(tmp_path / "run", importance=tmp_path / "loss.json")).text
    assert "rise of the log loss" in by_loss
    assert "the log loss rises by 0.50000" in by_loss
    with refused(ConfigError, f"importance={tmp_path}/other.json", "has no importance of columns for ..."):
        write_report(tmp_path / "run", importance=tmp_path / "other.json")


def test_a_shorter_runs_result_does_not_finish_a_longer_run(tmp_path: Path) -> None:
    """A finished run that goes on with more epochs is unfinished again."""
    write_run(tmp_path / "run")
    path = tmp_path / "run/result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "steps": 20}))
    assert "Not finished" in read_report(write_report(tmp_path / "run")).text


def test_long_runs_make_no_long_pages(tmp_path: Path) -> None:
    """Twenty thousand log events are averaged to a few hundred points."""
    write_run(tmp_path / "run", num_steps=20_000, splits=())
    path = write_report(tmp_path / "run")
    assert path.stat().st_size < 200_000
    assert "each point is the mean of 84 log events" in read_report(path).text


def test_the_command_rebuilds_it_without_torch(tmp_path: Path) -> None:
    """In well under a second, from the folder alone."""
    write_run(tmp_path / "run")
    program = (
        "import sys; sys.argv = ['dlrm-report', 'run']; from dlrm_app.cli import commands, launch; "
        "launch.end_process = lambda code: None; commands.report(); assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "run/report.html\n"
    assert done.stderr == "next: dlrm-evaluate checkpoint=run\n"
    assert (tmp_path / "run/report.html").is_file()
