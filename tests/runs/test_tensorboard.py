"""Events in TensorBoard are those of metrics.jsonl, and it cannot end a run."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dlrm_app.config.train import LoggingConfig
from dlrm_app.runs.checkpoint.evaluation import Evaluation
from dlrm_app.runs.events import TrainEvent
from dlrm_app.runs.tensorboard import TensorBoard
from dlrm_app.runs.tracker import TrackedRun
from dlrm_app.typed import install_command


def trained(step: int, loss: float) -> TrainEvent:
    return TrainEvent(0, step, loss, 1000.0, {"sparse": 0.02})


def begun(folder: Path, step: int = 0) -> TensorBoard:
    log = TensorBoard()
    log.begin(TrackedRun(folder, "run", {}, {}, step))
    return log


def read(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return found


def test_tensorboard_reads_the_logged_events(tmp_path: Path) -> None:
    """On disk after every event, without closing: a run that is killed keeps them."""
    log = begun(tmp_path)
    log.add(trained(5, 0.5))
    log.add(Evaluation("val", 0, 7, {"auc": 0.75}))
    found = read(tmp_path)
    assert set(found.Tags()["scalars"]) == {
        "train/loss",
        "train/samples_per_second",
        "train/lr/sparse",
        "eval/val/auc",
    }
    (event,) = found.Scalars("eval/val/auc")
    assert (event.step, event.value) == (7, 0.75)


def test_steps_that_a_resumed_run_takes_again_are_shown_once(tmp_path: Path) -> None:
    """The first run logs steps 1 to 4 and is killed; the second goes on from the checkpoint after step 2."""
    for first_step, steps, loss in ((0, range(1, 5), 1.0), (2, range(3, 6), 2.0)):
        log = begun(tmp_path, first_step)
        for step in steps:
            log.add(trained(step, loss))
        log.end([], is_finished=True)
    losses = [(event.step, event.value) for event in read(tmp_path).Scalars("train/loss")]
    assert losses == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]


def test_a_missing_package_is_named_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlrm_app.config.train.find_spec", lambda _: None)
    (problem,) = LoggingConfig(tensorboard=True).problems("logging.")
    assert str(problem).startswith("logging.tensorboard needs the package tensorboard")
    assert problem.cure == install_command("watch")
    assert LoggingConfig(tensorboard=False).problems() == []
