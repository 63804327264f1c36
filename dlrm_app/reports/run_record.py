"""Reads the content of a run's folder, without torch and without the dataset."""

import json
from dataclasses import dataclass
from pathlib import Path

import yaml

from dlrm_app.errors import DataError, Problem
from dlrm_app.files import yaml_text
from dlrm_app.records import Json
from dlrm_app.runs.checkpoint.evaluation import Evaluation
from dlrm_app.runs.events import TrainEvent, read_events

CURE = "take it from a copy of the run, or delete it"


@dataclass(frozen=True)
class RunRecord:
    """The files of a run folder. ``result`` is None until the run is finished. Events are in order."""

    path: Path
    config: Json
    environment: Json
    dataset: Json
    curves: Json
    result: Json | None
    train: list[TrainEvent]
    evals: list[Evaluation]
    last_step: int

    @property
    def batch_size(self) -> int:
        """Rows of a step, all ranks together."""
        return int(self.config["trainer"]["global_batch_size"])

    @property
    def best_metric(self) -> str:
        """The name of the metric by which an evaluation is the best."""
        return str(self.config.get("evaluation", {}).get("best", "auc"))

    def last_eval(self, split: str) -> Evaluation | None:
        return next((event for event in reversed(self.evals) if event.split == split), None)


def read_run(folder: Path) -> RunRecord:
    """Reads the record of the run in ``folder``, finished or not. Raises DataError if there is none."""
    config, dataset = _read(folder / "config.yaml"), _read(folder / "dataset.json")
    if not _is_of_training(config):
        raise DataError(
            Problem(str(folder), "holds no run (no config.yaml)", "name the folder that dlrm-train wrote")
        )
    if dataset and not (isinstance(dataset.get("splits"), dict) and "fingerprint" in dataset):
        raise DataError(Problem(str(folder / "dataset.json"), "is not what dlrm-train wrote", CURE))
    events = read_events(folder)
    result = _read(folder / "result.json")
    last_step = max((event.step for event in events), default=0)
    is_stale = result.get("steps", 0) < last_step  # from the shorter run that this one continues
    return RunRecord(
        path=folder,
        config=config,
        environment=_read(folder / "environment.json"),
        dataset=dataset,
        curves=_read(folder / "curves.json"),
        result=result if result and not is_stale else None,
        train=[event for event in events if isinstance(event, TrainEvent)],
        evals=[event for event in events if isinstance(event, Evaluation)],
        last_step=last_step,
    )


def _is_of_training(config: Json) -> bool:
    """True if the keys that reports read have dlrm-train's types; other keys are only shown."""
    trainer = config.get("trainer")
    batch_size = trainer.get("global_batch_size") if isinstance(trainer, dict) else None
    return type(batch_size) is int and batch_size > 0


def _read(path: Path) -> Json:
    """A JSON or YAML file's mapping; empty if the run has not written it yet."""
    if not path.is_file():
        return {}
    try:
        is_yaml = path.suffix == ".yaml"
        value = yaml.safe_load(yaml_text(path)) if is_yaml else json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise DataError(Problem(str(path), f"was damaged after it was written ({error})", CURE)) from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DataError(Problem(str(path), "is not what dlrm-train wrote", CURE))
    return value
