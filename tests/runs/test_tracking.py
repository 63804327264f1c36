"""Trackers are told what metrics.jsonl is told; one that fails or hangs costs a warning, never the run."""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from dlrm_app.config.train import LoggingConfig
from dlrm_app.runs import tracking
from dlrm_app.runs.checkpoint.evaluation import Evaluation
from dlrm_app.runs.events import Event, TrainEvent
from dlrm_app.runs.tracker import TrackedRun, Tracker, scalars
from dlrm_app.runs.tracking import Tracking, attach, publish, run_ids_in, track_study
from dlrm_app.typed import install_command

EVENTS: list[Event] = [
    TrainEvent(0, 5, 0.5, 1000.0, {"sparse": 0.02}),
    Evaluation("val", 0, 7, {"auc": 0.75, "gauc": float("nan")}),
]


class Recorder(Tracker):
    """Keeps what it is told."""

    told: list[object]

    def begin(self, run: TrackedRun) -> str:
        self.told.append(("begin", run.name, run.known, run.parent, run.step))
        return run.known or f"name of {run.name}"

    def add(self, event: Event) -> None:
        self.told.append(event)

    def end(self, files: Sequence[Path], *, is_finished: bool) -> None:
        self.told.append(("end", [file.name for file in files], is_finished))

    def attach(self, known: str, folder: Path) -> None:
        self.told.append(("attach", known, folder.name))

    def publish(self, known: str, folder: Path, model: str) -> None:
        self.told.append(("publish", known, folder.name, model))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What a tracker is told, whatever its name."""
    found: list[object] = []
    made = type("Own", (Recorder,), {"told": found})
    monkeypatch.setattr(tracking, "new_tracker", lambda name: made())
    return found


def test_a_tracker_is_told_of_a_run_in_order(tmp_path: Path, told: list[object]) -> None:
    """Its name of the run is kept, so that a resumed run continues it, and exports and published models join it."""
    run = tmp_path / "shop" / "run"
    run.mkdir(parents=True)
    (run / "report.html").touch()
    tracker = Tracking(["mine", "mine"])
    tracker.begin(run, {}, {"path": "d"})
    for event in EVENTS:
        tracker.add(event)
    tracker.end([run / "report.html", run / "curves.json"], is_finished=True)
    name = "name of shop/run"
    assert told == [("begin", "shop/run", None, None, 0), *EVENTS, ("end", ["report.html"], True)]
    assert run_ids_in(run) == {"mine": name}
    told.clear()
    resumed = Tracking(["mine"])
    resumed.begin(run, {}, {"path": "d"}, step=100)
    resumed.end([], is_finished=False)
    attach(run, tmp_path / "export")
    publish(run, tmp_path / "export", "shop")
    assert told == [
        ("begin", "shop/run", name, None, 100),
        ("end", [], False),
        ("attach", name, "export"),
        ("publish", name, "export", "shop"),
    ]


def test_runs_below_a_study_belong_to_it(tmp_path: Path, told: list[object]) -> None:
    trial = tmp_path / "study" / "trials" / "0003"
    trial.mkdir(parents=True)
    for _ in range(2):  # a study that is continued is begun once
        track_study(tmp_path / "study", ["tensorboard", "mine"], {})
    tracker = Tracking(["mine"])
    tracker.begin(trial, {}, {"path": "d"})
    tracker.end([], is_finished=True)
    parent = f"name of {tmp_path.name}/study"
    assert [each for each in told if each[0] == "begin"] == [  # type: ignore[index]
        ("begin", f"{tmp_path.name}/study", None, None, 0),
        ("begin", "trials/0003", None, parent, 0),
    ]


def test_a_tracker_that_fails_is_dropped_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, told: list[object]
) -> None:
    def fail(self: Tracker, event: Event) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Recorder, "add", fail)
    tracker = Tracking(["mine"])
    tracker.begin(tmp_path, {}, {"path": "d"})
    for event in EVENTS:
        tracker.add(event)
    tracker.end([], is_finished=True)
    assert caplog.text.count("the tracker mine failed and gets no more events") == 1
    assert "OSError: disk full" in caplog.text
    assert len(told) == 1  # it has begun


def test_a_tracker_that_hangs_does_not_hold_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, told: list[object]
) -> None:
    answered = threading.Event()
    monkeypatch.setattr(Recorder, "add", lambda self, event: answered.wait())
    monkeypatch.setattr(tracking, "SECONDS", 0.2)
    tracker = Tracking(["mine"])
    tracker.begin(tmp_path, {}, {"path": "d"})
    tracker.add(EVENTS[0])
    tracker.end([], is_finished=True)
    answered.set()
    assert "the tracker mine does not answer for 0.2 s: the run ends without it" in caplog.text


def test_a_package_that_cannot_be_imported_is_a_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "trackers.json").write_text('{"unheard_of": "x"}')
    with caplog.at_level(logging.WARNING):
        attach(tmp_path, tmp_path / "export")
    assert "the tracker unheard_of failed" in caplog.text


def test_numbers_have_the_names_that_people_expect() -> None:
    """Without those that are undefined."""
    assert dict(scalars(EVENTS[0])) == {
        "train/loss": 0.5,
        "train/samples_per_second": 1000.0,
        "train/lr/sparse": 0.02,
    }
    assert dict(scalars(EVENTS[1])) == {"val/auc": 0.75}


def test_parameters_and_tags_tell_how_a_run_began(tmp_path: Path) -> None:
    config = {"trainer": {"epochs": 2, "max_steps": None}, "warm_start": {"checkpoint": "before"}}
    run = TrackedRun(tmp_path, "run", config, {"path": "data", "fingerprint": "f"}, step=5)
    assert run.parameters == {"trainer.epochs": 2, "warm_start.checkpoint": "before"}
    assert run.tags == {
        "dlrm.folder": str(tmp_path),
        "dlrm.dataset": "data",
        "dlrm.dataset_fingerprint": "f",
        "dlrm.resumed_from_step": "5",
        "dlrm.warm_started_from": "before",
    }


def test_unknown_trackers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing package is named with the command that installs it."""
    (problem,) = LoggingConfig(tensorboard=False, trackers=["mlfow"]).problems("logging.")
    assert "mlflow" in str(problem)
    monkeypatch.setattr("dlrm_app.config.train.find_spec", lambda name: None)
    (problem,) = LoggingConfig(tensorboard=False, trackers=["wandb"]).problems("logging.")
    assert str(problem).startswith("logging.trackers needs the package wandb, which is not installed")
    assert problem.cure == install_command("wandb")
