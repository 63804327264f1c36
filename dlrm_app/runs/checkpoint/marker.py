"""complete.json: the mark of a complete checkpoint, with everything but tensors that a resumed run needs.

It also describes the model. Does not import torch.
"""

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dlrm_app.config.train import EvaluationConfig, TrainerConfig, read_saved_config
from dlrm_app.dataset.columns import number_features, read_as_known, refuse_other_columns
from dlrm_app.dataset.label import SAME_LABEL, LabelRule, known_labels
from dlrm_app.dataset.manifest import MANIFEST, DenseColumn, Manifest, read_manifest
from dlrm_app.errors import DataError, Problem
from dlrm_app.files import SharedLock, differences
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.plugins import refuse_other_plugins
from dlrm_app.records import ALWAYS, IF_SET, Format, from_json
from dlrm_app.tables.specs import Table, in_order, resolve_tables
from dlrm_app.text import bullets
from dlrm_app.typed import setting

MARKER = "complete.json"
SUGGESTION = "take it from a copy of the run, or name another checkpoint"


LEARNT, UNDECIDED = "learnt", "undecided"
CONSTANT, INVERTED, TOO_GOOD, DIVERGED = "no better than a constant", "inverted", "too good", "diverged"
"""Verdicts on an evaluation. A model with one of the second line must not be used."""
TOO_EARLY = "too early"
"""The cause of a verdict that may change before the run ends."""


@dataclass(frozen=True)
class Cause:
    """A likely cause of a bad verdict: the measurement that speaks for it, and the cure."""

    name: str
    measured: str
    cure: str


@dataclass(frozen=True)
class Judgement:
    """The verdict on one evaluation, also in words, its causes (the likeliest first) and the numbers measured."""

    verdict: str
    says: str
    causes: list[Cause] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)

    @property
    def is_bad(self) -> bool:
        """True if the model must not be used."""
        return self.verdict not in (LEARNT, UNDECIDED)

    @property
    def advice(self) -> list[str]:
        """A line for each cause, with its cure."""
        return [f"{cause.measured}: {cause.cure}" for cause in self.causes]

    @property
    def text(self) -> str:
        """The verdict, then a line for each cause."""
        if not self.causes:
            return self.says
        title = "the likely cause" if len(self.causes) == 1 else "the likely causes, the likeliest first"
        return f"{self.says}; {title}:\n{bullets(self.advice)}"


@dataclass(frozen=True)
class Evaluation:
    """Metrics on ``split`` after ``step`` steps; ``epoch`` is the epoch of the last step taken.

    ``judgement`` is None if it was not judged. ``labels``: the metrics of every further label, on rows that have it.
    """

    split: str
    epoch: int
    step: int
    metrics: Mapping[str, float]
    judgement: Judgement | None = None
    labels: dict[str, dict[str, float]] = field(default_factory=dict, metadata=IF_SET)

    def of_label(self, name: str) -> "Evaluation":
        """The evaluation of a further label."""
        return replace(self, metrics=self.labels[name], judgement=None, labels={})

    @property
    def merit(self) -> tuple[float, float]:
        """Orders evaluations of one split: the AUC, or the log loss if labels of one class leave no AUC."""
        auc = self.metrics["auc"]
        if not math.isnan(auc):
            return auc, 0.0
        loss = self.metrics.get("logloss", math.nan)
        return -1.0, -math.inf if math.isnan(loss) else -loss

    def to_json(self) -> dict[str, Any]:
        """A flat dict: the metrics stand beside the step."""
        judged = {} if self.judgement is None else {"judgement": asdict(self.judgement)}
        labels = {"labels": self.labels} if self.labels else {}
        return {
            "split": self.split,
            "epoch": self.epoch,
            "step": self.step,
            **self.metrics,
            **judged,
            **labels,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Evaluation":
        """Reads what ``to_json`` gave. Raises KeyError, TypeError or ValueError."""
        rest = dict(value)
        split, epoch, step = rest.pop("split"), rest.pop("epoch"), rest.pop("step")
        if not (isinstance(epoch, int) and isinstance(step, int)):
            raise TypeError(f"epoch and step must be whole numbers, got {epoch!r} and {step!r}")
        judged = rest.pop("judgement", None)
        judgement = None if judged is None else from_json(Judgement, judged)
        labels = {name: _numbers(values) for name, values in rest.pop("labels", {}).items()}
        return cls(split, epoch, step, _numbers(rest), judgement, labels)


def _numbers(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: math.nan if number is None else number for name, number in metrics.items()}


@dataclass
class Progress:
    """Epochs done, batches done in the current epoch, and steps and samples in all."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    samples: int = 0
    train_seconds: float = 0.0
    train_loss: list[float] = field(default_factory=list)
    """The mean loss of each epoch done."""
    evals: list[Evaluation] = field(default_factory=list)
    earlier_updates: int = field(default=0, metadata=IF_SET)
    """Steps that the optimizers had already counted when the run took over weights and states of another run."""

    @property
    def counted_updates(self) -> int:
        """Steps as the optimizers count them."""
        return self.earlier_updates + self.step

    @property
    def last_epoch(self) -> int:
        """The epoch of the last step taken."""
        return self.epoch if self.batch else max(0, self.epoch - 1)

    @property
    def samples_per_second(self) -> float:
        """Throughput of all training so far, without evaluations and saving."""
        return self.samples / max(self.train_seconds, 1e-9)

    def has_evaluated(self, split: str) -> bool:
        """True if ``split`` was evaluated after the last step taken."""
        return any(each.split == split and each.step == self.step for each in self.evals)

    def best_val(self) -> Evaluation | None:
        """The best evaluation on val so far, by ``merit``."""
        val = [each for each in self.evals if each.split == "val"]
        return max(val, key=lambda each: each.merit, default=None)

    def val_aucs(self, before: int) -> list[float]:
        """The AUCs of the evaluations on val before step number ``before``."""
        return [each.merit[0] for each in self.evals if each.split == "val" and each.step < before]

    @property
    def judgement(self) -> Judgement | None:
        """The judgement of the last evaluation on val; None if there is none."""
        return next((each.judgement for each in reversed(self.evals) if each.split == "val"), None)


@dataclass(frozen=True)
class LossSums:
    """Sums of training losses: ``sums`` by rank, of ``count`` steps that are not logged yet, and those of the epoch.

    ``clicks``: the sums of ``instruments.click_sums`` by rank, of these steps.
    """

    sums: list[float]
    count: int
    epoch_sum: float
    epoch_count: int
    clicks: list[list[float]] = field(default_factory=list, metadata=IF_SET)


@dataclass(frozen=True)
class Marker:
    """Everything that a resumed run needs, except the tensors."""

    progress: Progress
    meter: LossSums
    random_state: str
    """State of torch's CPU generator."""
    dataset: str
    """The dataset's fingerprint."""
    columns: dict[str, Any]
    """The dataset's encoding and label, by ``describe_columns``."""
    config: dict[str, Any]
    world_size: int
    plan: dict[str, Any]
    """The sharding plan, as in plan.yaml."""
    metrics_bytes: int
    """The size of the run's metrics.jsonl."""
    tables: dict[str, list[str]]
    """Table → its features, in the order in which the model reads them."""
    dataset_at: str = field(default="", metadata=IF_SET)
    """The dataset's folder, from the run's folder."""
    cuda_random_states: list[str] = field(default_factory=list, metadata=IF_SET)
    """State of each rank's GPU generator, by rank; empty on CPU."""
    files: dict[str, tuple[int, str]] = field(default_factory=dict, metadata=ALWAYS)
    """Name → (bytes, checksum) of every file beside the marker."""
    format: str = field(default="dlrm-checkpoint", metadata=ALWAYS)
    version: int = field(default=1, metadata=ALWAYS)

    @property
    def val_merit(self) -> tuple[float, float] | None:
        """The ``merit`` on val of these weights; None unless they were evaluated before the save."""
        step = self.progress.step
        merits = [e.merit for e in self.progress.evals if e.split == "val" and e.step == step]
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
    """Reads complete.json. Raises DataError if the folder is no complete checkpoint."""
    if not folder.is_dir():
        raise DataError(
            Problem(str(folder), "does not exist", "name a checkpoint, or a run folder that holds one")
        )
    try:
        return _FORMAT.read(folder / MARKER)
    except (FileNotFoundError, IsADirectoryError) as error:  # a run that trains may delete it at any moment
        raise DataError(
            Problem(
                str(folder),
                "is no complete checkpoint and no run folder that holds one",
                "name a folder that dlrm-train wrote, once it has saved",
            )
        ) from error


def verify_files(folder: Path, files: dict[str, tuple[int, str]]) -> None:
    """Compares files with the marker's sizes and checksums. Raises DataError naming every file that differs."""
    if problems := differences(folder, files):
        raise DataError(Problem(str(folder), "is damaged", SUGGESTION), *problems)


MODEL, EMA = "model", "ema"
"""Prefixes of tensor names in a checkpoint: weights, and averages of the dense weights."""


@dataclass(frozen=True)
class TrainedModel:
    """A complete checkpoint, not loaded yet: the description of its model, and the settings that it computes with."""

    folder: Path
    marker: Marker
    spec: ModelSpec
    trainer: TrainerConfig
    evaluation: EvaluationConfig
    data_path: str
    """The dataset that the model was trained on."""
    dense: str = MODEL
    """MODEL, or EMA to use the average of the dense weights."""
    held: SharedLock | None = field(default=None, compare=False)
    """While it is held, the run does not delete the checkpoint."""

    @property
    def columns(self) -> dict[str, Any]:
        """The encoding of the model's dataset."""
        return self.marker.columns

    @property
    def dense_names(self) -> list[str]:
        """The dense columns, in the order that the model reads them."""
        return [column["name"] for column in self.columns["dense"]]

    @property
    def tables(self) -> Sequence[Table]:
        """The model's tables, in the order that it reads them."""
        return self.spec.tables

    @property
    def order(self) -> dict[str, Sequence[str]]:
        """Table → its features, in the order that the model reads them."""
        return {table.name: table.features for table in self.tables}

    @property
    def features(self) -> list[str]:
        """The sparse features, in the order that the model reads them."""
        return [name for table in self.tables for name in table.features]

    @property
    def name(self) -> str:
        """Run and step, as text."""
        average = ", averaged" if self.dense == EMA else ""
        return f"{self.folder.absolute().parents[1].name}/{self.folder.name}{average}"


def dataset_of(folder: Path, marker: Marker, typed: str) -> str:
    """The dataset that the checkpoint at ``folder`` was trained on, where it is now. ``typed``: where it was.

    Found from any working folder, also after run and dataset were moved together, or in the folder that was typed.
    """
    beside = folder.absolute().parents[1] / marker.dataset_at
    if marker.dataset_at and (beside / MANIFEST).is_file():
        with suppress(DataError):
            if read_manifest(beside).fingerprint() == marker.dataset:
                return os.path.normpath(beside) if Path(typed).is_absolute() else os.path.relpath(beside)
    return typed


def describe_trained(folder: Path, marker: Marker, dense: str = MODEL) -> TrainedModel:
    """Describes the model of the checkpoint at ``folder`` by its ``marker``. Raises DataError for unknown settings."""
    config = read_saved_config(marker.config, folder)
    refuse_other_plugins(config.model.kind, config.plugins, str(folder))
    feature_rows = {column["name"]: column["num_embeddings"] for column in marker.columns["sparse"]}
    groups = [*marker.tables.values()]  # of an earlier version: each feature alone
    weighted = [column["name"] for column in marker.columns["sparse"] if column.get("weights")]
    tables = in_order(resolve_tables(config.tables, feature_rows, groups, weighted), marker.tables)
    columns = [DenseColumn(**column) for column in marker.columns["dense"]]
    numbers, labels = number_features(columns), known_labels(marker.columns)
    spec = ModelSpec(config.model, tables, len(columns), config.trainer.seed, numbers, labels)
    return TrainedModel(
        folder,
        marker,
        spec,
        config.trainer,
        config.evaluation,
        dataset_of(folder, marker, config.data.path),
        dense,
    )


def check_columns(trained: TrainedModel, manifest: Manifest) -> None:
    """Raises DataError naming every column that ``manifest`` and the model's dataset encode differently."""
    if trained.marker.dataset != manifest.fingerprint():
        encoding = setting("encoding.path", trained.data_path)
        refuse_other_columns(trained.columns, manifest, trained.features, trained.folder, encoding)


def known_rows(trained: TrainedModel, manifest: Manifest, label: LabelRule = SAME_LABEL) -> Manifest:
    """``manifest`` as the model reads it, also with vocabularies of another day. Raises DataError if it does not fit.

    ``label``: as in ``refuse_other_columns``.
    """
    rows = manifest
    if trained.marker.dataset != manifest.fingerprint():
        encoding = setting("encoding.path", trained.data_path)
        columns, features = trained.columns, trained.features
        rows = read_as_known(columns, manifest, features, trained.folder, encoding, label)
    return rows.with_labels(trained.spec.labels)
