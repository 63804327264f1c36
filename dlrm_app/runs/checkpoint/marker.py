"""complete.json: the mark of a complete checkpoint, with everything but tensors that a resumed run needs.

Does not import torch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlrm_app.checksums import differences
from dlrm_app.errors import DataError, Problem
from dlrm_app.records import ALWAYS, IF_SET, Format, Json
from dlrm_app.runs.checkpoint.progress import LossSums, Progress

MARKER = "complete.json"
SUGGESTION = "take it from a copy of the run, or name another checkpoint"
MODEL, EMA = "model", "ema"
"""Prefixes of tensor names in a checkpoint: weights, and averages of the dense weights."""


@dataclass(frozen=True)
class Marker:
    """Everything that a resumed run needs, except the tensors."""

    progress: Progress
    meter: LossSums
    random_state: str
    """State of torch's CPU generator."""
    dataset: str
    """The dataset's fingerprint."""
    columns: Json
    """The dataset's encoding and label, by ``describe_columns``."""
    config: Json
    world_size: int
    plan: Json
    """The sharding plan, as in plan.yaml."""
    metrics_bytes: int
    """The size of the run's metrics.jsonl."""
    tables: dict[str, list[str]]
    """Table → its features, in the order in which the model reads them."""
    dataset_at: str
    """The dataset's folder, from the run's folder."""
    cuda_random_states: list[str] = field(default_factory=list, metadata=IF_SET)
    """State of each rank's GPU generator, by rank; empty on CPU."""
    files: dict[str, tuple[int, str]] = field(default_factory=dict, metadata=ALWAYS)
    """Name → (bytes, checksum) of every file beside the marker."""
    format: str = field(default="dlrm-checkpoint", metadata=ALWAYS)
    version: int = field(default=1, metadata=ALWAYS)

    def val_merit(self, metric: str) -> tuple[float, float] | None:
        """The merit of these weights on val, by ``metric``; None unless they were evaluated before the save."""
        step = self.progress.step
        merits = [e.merit(metric) for e in self.progress.evals if e.split == "val" and e.step == step]
        return merits[-1] if merits and math.isfinite(merits[-1][1]) else None


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint whose files are verified."""

    folder: Path
    marker: Marker


def keeps_ema(config: Mapping[str, Any]) -> bool:
    """True if the run of ``config`` kept an average of its dense weights."""
    return config["optimizer"]["dense"]["ema_decay"] is not None


_FORMAT = Format(Marker, SUGGESTION, is_sealed=True)


def write_marker(folder: Path, marker: Marker) -> None:
    """Writes complete.json into ``folder``."""
    _FORMAT.write(folder / MARKER, marker)


def read_marker(folder: Path) -> Marker:
    """Reads complete.json. Raises DataError if the folder is not a complete checkpoint."""
    if not folder.is_dir():
        raise DataError(
            Problem(str(folder), "does not exist", "name a checkpoint, or a run folder that holds one")
        )
    try:
        return _FORMAT.read(folder / MARKER)
    except (FileNotFoundError, IsADirectoryError) as error:  # a run that trains may delete it at any moment
        rule = "is neither a complete checkpoint nor a run folder that holds one"
        cure = "name a folder that dlrm-train wrote, once it has saved"
        raise DataError(Problem(str(folder), rule, cure)) from error


def verify_files(folder: Path, files: dict[str, tuple[int, str]]) -> None:
    """Compares files with the marker's sizes and checksums. Raises DataError naming every file that differs."""
    if problems := differences(folder, files):
        raise DataError(Problem(str(folder), "is damaged", SUGGESTION), *problems)
