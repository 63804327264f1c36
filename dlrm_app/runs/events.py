"""Events of a run (the lines of metrics.jsonl) and its result."""

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dlrm_app.errors import DataError, Problem
from dlrm_app.records import IF_SET, Json, from_json
from dlrm_app.runs.checkpoint.evaluation import Evaluation

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
    "other": "the loss, and everything between the parts",
}
"""The parts of a step in their order → description."""
TITLES = {part: part.replace("_", " ").replace("mlps", "MLPs").replace("dist", "exchange") for part in PARTS}
"""The parts' names in reports."""


@dataclass(frozen=True)
class TrainEvent:
    """The steps since the last event: mean loss over all ranks, throughput, and the learning rates of the last step.

    step_ms: milliseconds of a step by part (see PARTS), the mean over ranks; empty before a step was profiled. ne,
    calibration: of the steps' rows, as they were scored before the model learnt them; nan with a teacher's scores.
    """

    epoch: int
    step: int
    loss: float
    samples_per_second: float
    lr: dict[str, float]
    step_ms: dict[str, float] = field(default_factory=dict)
    ne: float = math.nan
    calibration: float = math.nan


Event = TrainEvent | Evaluation


def event_to_json(event: Event) -> Json:
    """A line of metrics.jsonl, except the time."""
    if isinstance(event, Evaluation):
        return {"event": "eval", **event.to_json()}
    return {"event": "train", **asdict(event)}


def event_from_json(value: object) -> Event:
    """Reads the result of ``event_to_json``, with or without the time. Raises KeyError, TypeError or ValueError."""
    kinds: dict[str, type[Event]] = {"train": TrainEvent, "eval": Evaluation}
    if not isinstance(value, dict):
        raise TypeError("it is not a JSON object")
    values = {key: part for key, part in value.items() if key not in ("event", "time")}
    return from_json(kinds[value["event"]], values)


def read_events(folder: Path) -> list[Event]:
    """Reads the events of the run in ``folder`` so far. Raises DataError naming the line that is not an event."""
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return []
    # a file of another program may not be UTF-8; then its lines are not events
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            events.append(event_from_json(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            if number < len(lines):  # the last line may be half written
                raise DataError(
                    Problem(f"{path}:{number}", f"is not an event of a run ({error})", "remove that line")
                ) from error
    return events


@dataclass(frozen=True)
class RunResult:
    """Result of a run.

    ``evals``: the last evaluation of each split.
    ``best_reachable``: metrics of the true model, and ``further_best`` those of other labels.
    ``best_metric``: the name of the metric by which an epoch is the best.
    """

    evals: dict[str, Evaluation]
    ended_because: str | None
    best_epoch: int | None
    best_val_auc: float | None
    best_reachable: dict[str, float] | None
    steps: int
    train_loss: list[float]
    train_seconds: float
    wall_seconds: float
    samples_per_second: float
    world_size: int
    best_metric: str = "auc"
    further_best: dict[str, dict[str, float]] = field(default_factory=dict, metadata=IF_SET)
