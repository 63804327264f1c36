"""Runs that end before their last step: at a target, when nothing is gained any more; and what they hand on."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlrm_app.cli.commands import run_job
from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.signals import Stopped
from dlrm_app.runs.checkpoint.marker import Marker
from dlrm_app.runs.checkpoint.save import Checkpoints
from dlrm_app.runs.checkpoint.tensors import Tensors
from dlrm_app.training.loop import take_step
from dlrm_app.training.state import TrainingRun
from dlrm_app.training.train import train
from tests.loader.dataset_fixture import write_dataset
from tests.refusals import refused
from tests.small_run import events, small_config

STILL = ["optimizer=sgd", "optimizer.sparse.lr=1e-30", "optimizer.dense.lr=1e-30"]
"""Learning rates under which no AUC ever rises."""


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    """Two epochs of ten steps, evaluated after every second."""
    write_dataset(tmp_path / "data", rows={"train": 640, "val": 100, "test": 100})
    keys = [f"data.path={tmp_path / 'data'}", f"output={tmp_path / 'run'}", "trainer.global_batch_size=64"]
    return small_config(*keys, "trainer.epochs=2", "evaluation.every_steps=2", *STILL)


def evals(config: TrainConfig, split: str) -> list[dict[str, Any]]:
    return [event for event in events(Path(str(config.output)), "eval") if event["split"] == split]


def test_a_target_ends_the_run_where_it_is_reached(config: TrainConfig) -> None:
    config.evaluation.target_auc = 0.01
    result = train(config).result
    assert result.steps == 2
    assert "evaluation.target_auc=0.01 is reached" in str(result.ended_because)
    assert [event["step"] for event in evals(config, "test")] == [2]
    names = [path.name for path in (Path(str(config.output)) / "checkpoints").iterdir()]
    assert names == ["step-000000002"]


@pytest.mark.slow
def test_patience_decides_as_if_the_run_had_not_been_stopped(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped by a signal before, at and after evaluations and at an epoch's end; saved where it is stopped."""
    stops = [2, 3, 4, 8, 10, 13]
    config.optimizer.sparse.lr, config.optimizer.dense.lr, config.trainer.seed = 1.0, 1.0, 1
    config.evaluation.patience = 3
    undisturbed = train(replace(config, output=str(tmp_path / "undisturbed"))).result
    assert "evaluation.patience=3" in str(undisturbed.ended_because)
    assert undisturbed.steps > stops[-1], "the stops would be after its end"

    def step_and_stop(run: TrainingRun, *others: Any) -> None:
        take_step(run, *others)
        if run.progress.step in stops:
            signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr("dlrm_app.distributed.signals.handles_signals", lambda: True)
    monkeypatch.setattr("dlrm_app.training.loop.take_step", step_and_stop)
    config.resume = "auto"
    for stop in stops:
        # by its name, for a time limit around the tests sends SIGTERM
        with refused(Stopped, "", f"stopped by SIGUSR1 after step {stop};..."):
            train(config)
    result = train(config).result
    assert (result.steps, result.ended_because) == (undisturbed.steps, undisturbed.ended_because)
    assert events(tmp_path / "run") == events(tmp_path / "undisturbed")


def test_a_finished_run_that_is_started_again_stays_as_it_is(
    config: TrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever ended it; a start that has steps left writes a result of its own."""
    config.evaluation.patience = 3
    run = Path(str(config.output))
    first = train(config).result
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.suffix != ".html"}
    said = capsys.readouterr().out
    config.resume = "auto"
    again = train(config).result
    assert again == first
    assert files == {
        path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.suffix != ".html"
    }
    assert capsys.readouterr().out == said
    config.evaluation.patience = 4
    assert train(config).result.steps == 10


@pytest.mark.slow
def test_a_result_that_is_damaged_is_made_again(config: TrainConfig) -> None:
    first = train(config).result
    path = Path(str(config.output)) / "result.json"
    path.write_text(path.read_text()[:100])
    config.resume = "auto"
    assert train(config).result.evals["test"].metrics["auc"] == first.evals["test"].metrics["auc"]
    assert json.loads(path.read_text())["steps"] == first.steps


@pytest.mark.slow
def test_a_sweep_gets_the_best_auc_on_val_not_the_last(config: TrainConfig) -> None:
    config.optimizer.sparse.lr, config.optimizer.dense.lr, config.trainer.seed = 1.0, 1.0, 1
    given = run_job("train", config, {}, [])
    aucs = [event["auc"] for event in evals(config, "val")]
    assert given == max(aucs)
    assert given != aucs[-1]


def test_a_save_due_during_an_evaluation_comes_after_it(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def are_overdue(self: Checkpoints) -> bool:
        """Once, after the first evaluation."""
        if (Path(str(config.output)) / "metrics.jsonl").read_text().count('"eval"') == 1 and not seen:
            seen.append(1)
            return True
        return False

    saved: list[int] = []
    save = Checkpoints.save

    def save_and_note(self: Checkpoints, tensors: Tensors, marker: Marker) -> None:
        saved.append(marker.progress.step)
        save(self, tensors, marker)

    monkeypatch.setattr(Checkpoints, "are_overdue", are_overdue)
    monkeypatch.setattr(Checkpoints, "save", save_and_note)
    config.trainer.max_steps = 6
    train(config)
    assert saved[0] == 2
