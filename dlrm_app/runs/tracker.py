"""The interface of a tracker, and the registry of those that exist."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, cast

from dlrm_app.config.train import TRACKER_ENTRY_POINTS
from dlrm_app.records import Json, leaves
from dlrm_app.runs.events import Event, event_to_json

NO_METRICS = ("epoch", "step", "judgement", "judgements")
"""Keys that say when an event happened, and what its metrics mean; all other numbers are metrics."""


@dataclass(frozen=True)
class TrackedRun:
    """The facts that a tracker gets of a run when it begins.

    folder: the run's folder, or that of a study
    name: the last two parts of the folder's path, such as study/trial-0003
    config: the whole configuration
    dataset: what the dataset holds, with its ``fingerprint``; empty for a study
    step: the steps that were taken before; more than 0 if the run was resumed
    known: the tracker's name of this run, if it was begun before
    parent: the tracker's name of the study that the run belongs to
    """

    folder: Path
    name: str
    config: Mapping[str, Any]
    dataset: Json
    step: int = 0
    known: str | None = None
    parent: str | None = None

    @property
    def parameters(self) -> dict[str, object]:
        """The configuration by dotted keys, without those that are null."""
        return {key: value for key, value in leaves(self.config) if value is not None}

    @property
    def tags(self) -> dict[str, str]:
        """What one wants to search runs by: the dataset, and where the run began."""
        warm = (self.config.get("warm_start") or {}).get("checkpoint")
        found = {
            "dlrm.folder": str(self.folder),
            "dlrm.dataset": self.dataset.get("path"),
            "dlrm.dataset_fingerprint": self.dataset.get("fingerprint"),
            "dlrm.resumed_from_step": str(self.step) if self.step else None,
            "dlrm.warm_started_from": warm,
        }
        return {key: str(value) for key, value in found.items() if value is not None}


class Tracker:
    """Records a run. Each method is called in one thread of the tracker's own; an error ends it with a warning, and the
    run continues. Methods that a tracker does not need do nothing.
    """

    def begin(self, run: TrackedRun) -> str | None:
        """Begins or continues a run. Returns the tracker's name of it, by which it can be continued."""
        raise NotImplementedError

    def add(self, event: Event) -> None:
        """Records an event of metrics.jsonl."""

    def end(self, files: Sequence[Path], *, is_finished: bool) -> None:
        """Ends the run, with files to keep with it. ``is_finished``: False if it was stopped or failed."""

    def attach(self, known: str, folder: Path) -> None:
        """Keeps a ``folder``, such as an export, with a run that has ended."""

    def publish(self, known: str, folder: Path, model: str) -> None:
        """Registers a ``folder`` as the newest version of ``model``, the one that is published."""


TRACKERS = {
    "tensorboard": "tensorboard:TensorBoard",
    "mlflow": "mlflow_runs:MlflowRuns",
    "wandb": "wandb_runs:WandbRuns",
}
"""The trackers that are built in → module:class in this folder, imported when a run begins."""


def new_tracker(name: str) -> Tracker:
    """The tracker ``name``: a built-in one, or one that an installed package names in its entry points."""
    if name in TRACKERS:
        made = resolve_name(f"{__package__}.{TRACKERS[name]}")
    else:
        (point, *_) = entry_points(group=TRACKER_ENTRY_POINTS, name=name)
        made = point.load()
    return cast(Callable[[], Tracker], made)()


def scalars(event: Event) -> Iterator[tuple[str, float]]:
    """(name, number) of every number of an event: ``train/loss``, ``train/lr/sparse``, ``val/auc``."""
    values = event_to_json(event)
    prefix = values.get("split", values["event"])
    measured = {key: value for key, value in values.items() if key not in NO_METRICS}
    for name, value in leaves(measured, "/"):
        if isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value):
            yield f"{prefix}/{name}", float(value)
