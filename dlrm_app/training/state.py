"""The records of a training run: the fixed part, the state that a checkpoint holds, and the instruments."""

import copy
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property

from dlrm_app.config.metrics import metric_of
from dlrm_app.config.train import EvaluationConfig, TrainConfig
from dlrm_app.dataset.columns import describe_columns
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.evaluation.evaluate import ForwardPasses
from dlrm_app.loader.soft_labels import SoftLabels
from dlrm_app.records import Json
from dlrm_app.runs.checkpoint.evaluation import Evaluation
from dlrm_app.runs.checkpoint.marker import Checkpoint, Marker
from dlrm_app.runs.checkpoint.progress import Progress
from dlrm_app.runs.checkpoint.save import Checkpoints
from dlrm_app.runs.checkpoint.tensors import Tensors, collect_tensors
from dlrm_app.runs.folder import RunFolder
from dlrm_app.sharding.plan_file import plan_to_dict
from dlrm_app.stores.names import with_urls
from dlrm_app.training.instruments import LossMeter, Throughput, Trace
from dlrm_app.training.optimizers import DenseEma, LearningRates
from dlrm_app.training.setup import Trainable, cuda_random_states, random_state, set_random_states
from dlrm_app.training.step_parts import StepParts


@dataclass(frozen=True)
class RunState:
    """The part of a run that a checkpoint holds: weights, their average, optimizer states, progress, losses."""

    trainable: Trainable
    table_kinds: Mapping[str, str]
    """Each table's optimizer kind."""
    ema: DenseEma | None
    """None without optimizer.dense.ema_decay."""
    meter: LossMeter
    runtime: Runtime
    progress: Progress = field(default_factory=Progress)

    def tensors(self) -> Tensors:
        """Views of every tensor, under names that do not depend on the plan."""
        tensors = collect_tensors(self.trainable.model, self.trainable.optimizer, self.table_kinds)
        return tensors | self.ema.tensors() if self.ema else tensors

    def continue_from(self, marker: Marker) -> None:
        """Takes over the progress, unread losses and random states of a checkpoint of this run.

        The metric that decides is this run's own, which may be another one: evaluations that lack it are the worst.
        """
        for name, value in vars(marker.progress).items():
            if name != "best":
                setattr(self.progress, name, value)
        self.meter.load_state(marker.meter)
        set_random_states(marker.random_state, marker.cuda_random_states, self.runtime)


def reason_to_stop(config: EvaluationConfig, evals: Sequence[Evaluation]) -> str | None:
    """The reason why the run has trained enough, from all its evaluations so far; None to continue."""
    val = [each for each in evals if each.split == "val"]
    if not val:
        return None
    if config.target_auc is not None and (auc := val[-1].metrics["auc"]) >= config.target_auc:
        return f"AUC on val is {auc:.5f}, evaluation.target_auc={config.target_auc} is reached"
    merits = [each.merit(config.best)[0] for each in val]
    since = len(merits) - 1 - merits.index(max(merits))
    if config.patience is not None and since >= config.patience:
        metric, patience = metric_of(config.best), f"evaluation.patience={config.patience}"
        assert metric is not None
        change = "risen above" if metric.rises else "fallen below"
        best = metric.sign * max(merits)
        return f"{val[-1].decides(metric.title)} on val has not {change} {best:.5f} in {since} evaluations ({patience})"
    return None


@dataclass(frozen=True)
class Instruments:
    """Instruments that measure the steps of a run."""

    throughput: Throughput
    parts: StepParts
    trace: Trace


@dataclass(frozen=True)
class TrainingRun:
    """The fixed part of a run, with its ``state`` and its ``instruments``."""

    config: TrainConfig
    runtime: Runtime
    manifest: Manifest
    trainable: Trainable
    learning_rates: LearningRates
    soft_labels: SoftLabels | None
    """None without distillation.scores."""
    folder: RunFolder
    checkpoint: Checkpoint | None
    """The checkpoint that it continues."""
    before: TrainConfig | None
    """The configuration of the steps up to that checkpoint."""
    state: RunState
    instruments: Instruments
    started: float = field(default_factory=time.perf_counter)
    """The time at which this process started the run, by time.perf_counter."""

    @property
    def progress(self) -> Progress:
        """Epoch, batch, step and evaluations so far."""
        return self.state.progress

    @property
    def why_done(self) -> str | None:
        """The reason why training is complete; None if it is not."""
        trainer = self.config.trainer
        if reason := reason_to_stop(self.config.evaluation, self.progress.evals):
            return reason
        if self.progress.epoch >= trainer.epochs:
            return f"trainer.epochs={trainer.epochs} are done"
        if trainer.max_steps is not None and self.progress.step >= trainer.max_steps:
            return f"trainer.max_steps={trainer.max_steps} is reached"
        return None

    @property
    def num_steps(self) -> int:
        """Steps of the whole run."""
        return self.config.trainer.num_steps(self.manifest.splits["train"].rows)

    @property
    def batches_per_epoch(self) -> int:
        """Global batches of an epoch."""
        return self.manifest.splits["train"].rows // self.config.trainer.global_batch_size

    @cached_property
    def columns(self) -> Json:
        """The dataset's encoding, for evaluating the model on other rows; only the first rank reads it."""
        return describe_columns(self.manifest) if self.runtime.is_first else {}

    @cached_property
    def forward_passes(self) -> ForwardPasses:
        """Forward passes for all evaluations of the run."""
        return ForwardPasses(self.trainable.model, self.runtime.device)

    def save(self, checkpoints: Checkpoints) -> None:
        """Saves the run, or starts saving in the background. Every rank must call it.

        Raises DlrmError on every rank if the previous save failed.
        """
        marker = Marker(
            progress=copy.deepcopy(self.progress),  # training may continue while the marker is written
            meter=self.state.meter.state(),
            random_state=random_state(),
            dataset=self.manifest.fingerprint(),
            dataset_at=os.path.relpath(self.manifest.folder, self.folder.path.absolute()),
            columns=self.columns,
            config=with_urls(asdict(self.config)),
            world_size=self.runtime.world_size,
            plan=plan_to_dict(self.trainable.plan),
            metrics_bytes=self.folder.metrics_bytes(),
            cuda_random_states=cuda_random_states(self.runtime),
            tables={table.name: list(table.features) for table in self.trainable.tables},
        )
        checkpoints.save(self.state.tensors(), marker)
