"""complete.json: what makes a checkpoint complete, and what it tells besides its tensors."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dlrm_app.errors import DataError
from dlrm_app.files import differences, write_json
from dlrm_app.runs.checkpoint.progress import LossSums, Progress
from dlrm_app.text import bullets

MARKER = "complete.json"
FORMAT = "dlrm-checkpoint"
VERSION = 1
SUGGESTION = "take it from a copy of the run, or name another checkpoint"


@dataclass(frozen=True)
class Marker:
    """Everything that a run goes on from, but for the tensors."""

    progress: Progress
    meter: LossSums
    random_state: str
    """Of torch's CPU generator."""
    dataset: str
    """Its fingerprint."""
    columns: dict[str, Any] | None
    """How the dataset is encoded, by ``describe_columns``; None in checkpoints of early versions."""
    config: dict[str, Any]
    world_size: int
    plan: dict[str, Any]
    """The sharding plan, as in plan.yaml."""
    metrics_bytes: int
    """The size of the run's metrics.jsonl."""
    cuda_random_states: list[str] = field(default_factory=list)
    """Of each rank's GPU, by rank."""
    files: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Name → (bytes, checksum) of every file beside the marker."""

    @property
    def val_auc(self) -> float | None:
        """The AUC on val of these weights, if they were evaluated before they were saved."""
        step = self.progress.step
        aucs = [e.metrics["auc"] for e in self.progress.evals if e.split == "val" and e.step == step]
        return aucs[-1] if aucs and not math.isnan(aucs[-1]) else None


def keeps_ema(config: Mapping[str, Any]) -> bool:
    """Whether the run of ``config`` kept an average of its dense weights; early versions had no such key."""
    return config["optimizer"]["dense"].get("ema_decay") is not None


def write_marker(folder: Path, marker: Marker) -> None:
    """Writes complete.json into ``folder``."""
    value = {**asdict(marker), "progress": marker.progress.to_json()}
    if not marker.cuda_random_states:  # the files of runs that need it not stay as they were
        del value["cuda_random_states"]
    write_json(folder / MARKER, {"format": FORMAT, "version": VERSION, **value})


def read_marker(folder: Path) -> Marker:
    """What complete.json tells. Raises DataError if the folder is no complete checkpoint."""
    path = folder / MARKER
    if not folder.is_dir():
        raise DataError(f"no checkpoint at {folder}: the folder does not exist")
    if not path.is_file():
        raise DataError(_what_it_is(folder))
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        written = (value.pop("format"), value.pop("version"))
        if written == (FORMAT, VERSION):
            return _parse(value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is damaged: {error!r}; {SUGGESTION}") from error
    raise DataError(
        f"{path} is {written[0]!r} version {written[1]!r}, this program reads {FORMAT!r} version {VERSION}: use the dlrm-app "
        "that saved it"
    )


def _what_it_is(folder: Path) -> str:
    """Of a folder that is no complete checkpoint; ``step-*`` is the name that ``checkpoint_name`` gives."""
    if any(folder.glob("step-*")):
        return (
            f"{folder} is no checkpoint but holds some: name the run folder {folder.parent}, or one of them"
        )
    if (folder / "config.yaml").is_file():
        return f"the run in {folder} has no whole checkpoint: train it until it has saved one"
    if folder.name.startswith("step-"):
        return f"{folder} is no complete checkpoint: it has no {MARKER} (its saving was interrupted)"
    return f"{folder} is no checkpoint and no run folder: name one that dlrm-train wrote"


def _parse(value: dict[str, Any]) -> Marker:
    progress, meter = Progress.from_json(value.pop("progress")), LossSums(**value.pop("meter"))
    files = {name: (size, digest) for name, (size, digest) in value.pop("files").items()}
    columns = value.pop("columns", None)
    value.pop("calibration", None)  # what early versions kept with trainer.calibrate
    return Marker(progress=progress, meter=meter, columns=columns, files=files, **value)


def verify_files(folder: Path, files: dict[str, tuple[int, str]]) -> None:
    """Compares files with what the marker says of them. Raises DataError naming every one that differs."""
    if problems := differences(folder, files):
        raise DataError(f"checkpoint {folder} is damaged; {SUGGESTION}:\n{bullets(problems)}")
