"""Events of a run and their observers: lines of metrics.jsonl, result.json, and the moments between them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dlrm_app.errors import DataError
from dlrm_app.records import from_json
from dlrm_app.runs.checkpoint.marker import Evaluation

PARTS = {
    "data": "waiting for the next batch",
    "copy": "the batch to the device",
    "input_dist": "ids to the ranks that hold their rows",
    "lookup": "rows read and pooled",
    "output_dist": "pooled vectors to the ranks of their samples, side by side",
    "mlps": "both MLPs, forward",
    "interaction": "features meet, forward",
    "mlps_backward": "both MLPs and the loss, backward",
    "interaction_backward": "features meet, backward",
    "gradient_exchange": "gradients of pooled vectors sent back; waiting for those of the dense part",
    "table_update": "gradients into the tables, optimizer fused",
    "optimizer": "the dense part's optimizer",
    "other": "the loss, and what lies between",
}
"""The parts of a step in their order, and what each is."""
TITLES = {part: part.replace("_", " ").replace("mlps", "MLPs").replace("dist", "exchange") for part in PARTS}
"""Their names for people."""


@dataclass(frozen=True)
class TrainEvent:
    """The steps since the last: mean loss over all ranks, throughput, and the learning rates of the last step.

    step_ms: what the milliseconds of a step went into, see PARTS; the mean over steps and ranks.
    """

    epoch: int
    step: int
    loss: float
    samples_per_second: float
    lr: dict[str, float]
    step_ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SkipEvent:
    """A step that was skipped, for its loss was no finite number: its rows, and its dense columns that are not."""

    epoch: int
    step: int
    rows: list[str]
    columns: list[str]


@dataclass(frozen=True)
class HealthEvent:
    """Health of each table, by name; measured with an evaluation of ``split``."""

    split: str
    epoch: int
    step: int
    tables: dict[str, dict[str, float | None]]


Event = TrainEvent | Evaluation | HealthEvent | SkipEvent
KINDS: dict[type, str] = {
    TrainEvent: "train",
    Evaluation: "eval",
    HealthEvent: "health",
    SkipEvent: "skip",
}


def event_to_json(event: Event) -> dict[str, Any]:
    """A line of metrics.jsonl, except the time."""
    values = event.to_json() if isinstance(event, Evaluation) else asdict(event)
    return {"event": KINDS[type(event)], **values}


def event_from_json(value: Mapping[str, Any]) -> Event:
    """Reads what ``event_to_json`` gave, with the time or without. Raises KeyError, TypeError or ValueError."""
    if not isinstance(value, Mapping):
        raise TypeError("no JSON object")
    values = {key: part for key, part in value.items() if key not in ("event", "time")}
    kind = {name: kind for kind, name in KINDS.items()}[value["event"]]
    event: Event = Evaluation.from_json(values) if kind is Evaluation else from_json(kind, values)
    return event


def read_events(folder: Path) -> list[Event]:
    """Reads the events of the run in ``folder`` so far. Raises DataError, naming the line that is no event."""
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return []
    # bytes of another program's file are no UTF-8, and so no event
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            events.append(event_from_json(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            if number < len(lines):  # the last one may be half written, or cut off in a run that was killed
                raise DataError(
                    f"{path}:{number} is not an event of a run ({error}): remove that line"
                ) from error
    return events


@dataclass(frozen=True)
class RunResult:
    """Result of a run. ``evals``: the last evaluation of each split; ``best_reachable``: metrics of the true model."""

    evals: dict[str, Evaluation]
    ended_because: str | None
    best_epoch: int | None
    best_val_auc: float | None
    best_reachable: dict[str, float] | None
    steps: int
    skipped_steps: list[int]
    train_loss: list[float]
    train_seconds: float
    wall_seconds: float
    samples_per_second: float
    world_size: int

    def to_json(self) -> dict[str, Any]:
        """The value in result.json."""
        return {**asdict(self), "evals": {split: each.to_json() for split, each in self.evals.items()}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "RunResult":
        """Reads what ``to_json`` gave. Raises KeyError, TypeError or ValueError."""
        evals = {split: Evaluation.from_json(each) for split, each in dict(value["evals"]).items()}
        return cls(**{**value, "evals": evals})


@dataclass(frozen=True)
class RunStart:
    """The model is built and loaded, and the first step comes next."""


@dataclass(frozen=True)
class EpochStart:
    """``epoch``: counted from 0."""

    epoch: int


@dataclass(frozen=True)
class EpochEnd:
    """The epoch's steps are done and val is evaluated."""

    epoch: int


@dataclass(frozen=True)
class EvaluationStart:
    """``epochs_trained``: as a fraction."""

    split: str
    epochs_trained: float


@dataclass(frozen=True)
class EvaluationEnd:
    """``curves``: ROC, reliability and histogram as in curves.json; None without rows of both classes."""

    evaluation: Evaluation
    epochs_trained: float
    curves: dict[str, Any] | None


@dataclass(frozen=True)
class TrainingEnd:
    """No step is left to take. ``has_reached_target``: evaluation.target_auc is the reason."""

    has_reached_target: bool


@dataclass(frozen=True)
class RunEnd:
    """All is done, the evaluation of test too."""

    result: RunResult


Happening = (
    RunStart
    | EpochStart
    | EpochEnd
    | EvaluationStart
    | EvaluationEnd
    | TrainingEnd
    | RunEnd
    | TrainEvent
    | HealthEvent
    | SkipEvent
)


class Observer(Protocol):
    """Receives from the first rank what happens in a run, in its order."""

    def tell(self, happening: Happening) -> None:
        """Takes what concerns it."""


def logged(happening: Happening) -> Event | None:
    """The event of metrics.jsonl in ``happening``; None for a moment that is no event."""
    if isinstance(happening, EvaluationEnd):
        return happening.evaluation
    return happening if isinstance(happening, TrainEvent | HealthEvent | SkipEvent) else None
