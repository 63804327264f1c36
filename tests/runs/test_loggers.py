"""Events in TensorBoard and MLflow are those of metrics.jsonl, and neither can end a run."""

import logging
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dlrm_app.config.train import LoggingConfig
from dlrm_app.errors import DlrmError
from dlrm_app.runs.events import RunEnd, RunStart, SkipEvent, TrainEvent
from dlrm_app.runs.loggers import Loggers, MlflowLog, TensorBoardLog, open_logs, scalars

TRAIN = {"epoch": 0, "step": 5, "loss": 0.5, "lr": {"sparse": 0.02, "dense": 0.001}, "time": 1700000000.0}
EVAL = {"split": "val", "epoch": 0, "step": 7, "auc": 0.75, "note": "text", "time": 1700000001.0}
HEALTH = {
    "split": "val",
    "step": 7,
    "tables": {"t": {"weight_norm": 2.0, "rare_rate": None}},
    "time": 1700000002.0,
}


def test_every_number_has_a_name_and_nothing_else_does() -> None:
    assert dict(scalars("train", TRAIN)) == {
        "train/loss": 0.5,
        "train/lr/sparse": 0.02,
        "train/lr/dense": 0.001,
    }
    assert dict(scalars("eval", EVAL)) == {"eval/val/auc": 0.75}
    assert dict(scalars("health", HEALTH)) == {"health/val/tables/t/weight_norm": 2.0}
    assert dict(scalars("end", {"finished": True})) == {}


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    """On disk after every event, without closing: a run that is killed keeps them."""
    log = TensorBoardLog(tmp_path, first_step=0)
    log.log_event("train", **TRAIN)
    log.log_event("eval", **EVAL)
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    assert set(found.Tags()["scalars"]) == {"train/loss", "train/lr/sparse", "train/lr/dense", "eval/val/auc"}
    (event,) = found.Scalars("eval/val/auc")
    assert (event.step, event.value, event.wall_time) == (7, 0.75, 1700000001.0)


def test_steps_that_a_resumed_run_takes_again_are_shown_once(tmp_path: Path) -> None:
    """The first run logs steps 1 to 4 and is killed; the second goes on from the checkpoint after step 2."""
    first = TensorBoardLog(tmp_path, first_step=0)
    for step in range(1, 5):
        first.log_event("train", step=step, loss=1.0, time=1700000000.0 + step)
    first.close()
    second = TensorBoardLog(tmp_path, first_step=2)
    for step in range(3, 6):
        second.log_event("train", step=step, loss=2.0, time=1700000100.0 + step)
    second.close()
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    assert [(e.step, e.value) for e in found.Scalars("train/loss")] == [
        (1, 1),
        (2, 1),
        (3, 2),
        (4, 2),
        (5, 2),
    ]


def test_mlflow_gets_parameters_and_metrics_and_a_resumed_run_goes_on_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store on disk stands for a server."""
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri, folder = (tmp_path / "store").as_uri(), tmp_path / "run"
    folder.mkdir()
    log = MlflowLog(uri, folder, {"trainer": {"epochs": 2}, "output": "run"})
    log.log_event("train", **TRAIN)
    again = MlflowLog(uri, folder, {"trainer": {"epochs": 3}})
    many = {f"table {place}": {"norm": float(place)} for place in range(1200)}  # more than one call takes
    again.log_event("health", step=9, tables=many, time=1700000003.0)
    client = MlflowClient(uri)
    run_id = (folder / "mlflow_run_id").read_text().strip()
    assert client.get_run(run_id).info.status == "RUNNING"
    again.close()
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "run"
    assert run.data.params == {"trainer.epochs": "2", "output": "run"}
    assert run.data.metrics["train/loss"] == 0.5
    assert run.data.metrics["health/tables/table 1199/norm"] == 1199
    (metric,) = client.get_metric_history(run_id, "train/loss")
    assert (metric.step, metric.timestamp) == (5, 1700000000000)


def test_a_tracking_server_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(DlrmError, match=r"logging\.mlflow=http://127\.0\.0\.1:9 cannot be used"):
        MlflowLog("http://127.0.0.1:9", tmp_path, {})


class Kept:
    """Remembers the kinds of events; fails at those named ``bad``."""

    def __init__(self, bad: str = "") -> None:
        self.events: list[str] = []
        self.is_closed = False
        self._bad = bad

    def log_event(self, event: str, **_: Any) -> None:
        if event == self._bad:
            raise OSError("disk full")
        self.events.append(event)

    def close(self) -> None:
        self.is_closed = True


def test_a_log_that_fails_is_dropped_and_the_others_continue(caplog: pytest.LogCaptureFixture) -> None:
    failing, robust = Kept(bad="skip"), Kept()
    loggers = Loggers([failing, robust])
    train, skip = TrainEvent(0, 1, 0.5, 1000.0, {}), SkipEvent(0, 2, [], [])
    result: Any = None  # nobody reads it
    with caplog.at_level(logging.WARNING):
        for happening in (RunStart(), train, skip, train, RunEnd(result)):
            loggers.tell(happening)
    assert caplog.text.count("Kept failed and gets no more events") == 1
    assert "disk full" in caplog.text
    assert failing.events == ["train"]
    assert robust.events == ["train", "skip", "train"]
    assert robust.is_closed
    assert not failing.is_closed


def test_nothing_is_opened_that_was_not_asked_for(tmp_path: Path) -> None:
    open_logs(LoggingConfig(tensorboard=False), tmp_path, 0, {}).tell(TrainEvent(0, 1, 0.5, 1000.0, {}))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlrm_app.config.train.find_spec", lambda _: None)
    problems = LoggingConfig(tensorboard=True, mlflow="http://tracking").problems("logging.")
    assert len(problems) == 2
    for problem, package in zip(problems, ("tensorboard", "mlflow"), strict=True):
        assert str(problem).startswith(f"logging.{package} needs the package {package}")
        assert problem.cure == "pip install 'mlflow-skinny>=2.16' 'tensorboard>=2.16'"
    assert LoggingConfig(tensorboard=False).problems() == []


def test_a_password_in_the_address_is_refused() -> None:
    """It would end in config.yaml and in the report."""
    (problem,) = LoggingConfig(tensorboard=False, mlflow="http://me:secret@host").problems()
    assert "MLFLOW_TRACKING_PASSWORD" in problem.cure
    assert "secret" not in str(problem)
