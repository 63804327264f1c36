"""What the steps of a training run share, and how a checkpoint is made of it and it goes on from one."""

import copy
import logging
import time
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.columns import describe_columns
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.loader.soft_labels import SoftLabels
from dlrm_app.runs.checkpoint.load import load_tensors, open_checkpoint
from dlrm_app.runs.checkpoint.marker import EMA, Checkpoint, Marker, Progress, TrainedModel, keeps_ema
from dlrm_app.runs.checkpoint.save import Checkpoints
from dlrm_app.runs.checkpoint.tensors import (
    Tensors,
    collect_tensors,
    collect_weights,
    create_states,
    set_step,
)
from dlrm_app.runs.folder import RunFolder
from dlrm_app.sharding.plan_file import plan_to_dict
from dlrm_app.tables.sparse_optimizers import optimizer_kinds
from dlrm_app.text import count
from dlrm_app.training.decisions import reason_to_stop
from dlrm_app.training.instruments import Adviser, LossMeter, Throughput, Trace
from dlrm_app.training.mlperf_log import MlperfLog
from dlrm_app.training.nonfinite import NonfiniteGuard
from dlrm_app.training.optimizers import DenseEma
from dlrm_app.training.schedules import LearningRates
from dlrm_app.training.setup import Trainable, cuda_random_states, random_state, set_random_states
from dlrm_app.training.step_parts import StepParts
from dlrm_app.training.table_health import TableHealth

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingRun:
    """Everything that the steps of one run share; only ``progress`` and what measures steps change."""

    config: TrainConfig
    runtime: Runtime
    manifest: Manifest
    trainable: Trainable
    guard: NonfiniteGuard
    folder: RunFolder
    mlperf: MlperfLog
    health: TableHealth | None
    """None with evaluation.table_health=false."""
    checkpoint: Checkpoint | None
    """What it goes on from; ``before``: the configuration of the steps up to there."""
    before: TrainConfig | None
    ema: DenseEma | None
    """None without optimizer.dense.ema_decay."""
    soft_labels: SoftLabels | None
    """None without distillation.scores."""
    progress: Progress
    meter: LossMeter
    throughput: Throughput
    parts: StepParts
    adviser: Adviser
    trace: Trace
    started: float = field(default_factory=time.perf_counter)
    """When this process began the run, by time.perf_counter."""

    @property
    def why_done(self) -> str | None:
        """Why there is nothing left to train; None while there is."""
        trainer = self.config.trainer
        if reason := reason_to_stop(self.config.evaluation, self.progress.evals):
            return reason
        if self.progress.epoch >= trainer.epochs:
            return f"trainer.epochs={trainer.epochs} are done"
        if trainer.max_steps is not None and self.progress.step >= trainer.max_steps:
            return f"trainer.max_steps={trainer.max_steps} is reached"
        return None

    @property
    def epoch_title(self) -> str:
        """What the next step is a part of, for people."""
        return f"epoch {self.progress.epoch + 1}/{self.config.trainer.epochs}"

    @property
    def epochs_trained(self) -> float:
        """0.05 after a twentieth of the first epoch."""
        return self.progress.step / self.batches_per_epoch

    @property
    def num_steps(self) -> int:
        """Steps of the whole run."""
        return self.config.trainer.num_steps(self.manifest.splits["train"].rows)

    @property
    def batches_per_epoch(self) -> int:
        """Global batches of an epoch."""
        return self.manifest.splits["train"].rows // self.config.trainer.global_batch_size

    @cached_property
    def learning_rates(self) -> LearningRates:
        """What sets the learning rates before each step: a function of the step's number and the evaluations so far."""
        config = self.config
        return LearningRates(
            self.trainable.optimizer,
            self.trainable.tables,
            config.optimizer,
            config.schedule,
            self.num_steps,
            self.progress,
        )

    @cached_property
    def columns(self) -> dict[str, Any]:
        """How the dataset is encoded, for whoever evaluates the model on other rows; read by the first rank alone."""
        return describe_columns(self.manifest) if self.runtime.is_first else {}


def save(run: TrainingRun, checkpoints: Checkpoints) -> None:
    """Saves ``run``, or begins to. Every rank must call it. Raises SharedError if the save before this one failed."""
    marker = Marker(
        progress=copy.deepcopy(run.progress),  # training may go on while it is written
        meter=run.meter.state(),
        random_state=random_state(),
        dataset=run.manifest.fingerprint(),
        columns=run.columns,
        config=asdict(run.config),
        world_size=run.runtime.world_size,
        plan=plan_to_dict(run.trainable.plan),
        metrics_bytes=run.folder.metrics_bytes(),
        cuda_random_states=cuda_random_states(run.runtime),
    )
    checkpoints.save(run_tensors(run), marker)


def restore(run: TrainingRun, checkpoint: Checkpoint) -> None:
    """Makes ``run``, before its first step, the one that was saved: to the bit where ranks and plan are the same."""
    create_states(run.trainable.optimizer)
    tensors, marker = run_tensors(run), checkpoint.marker
    begins_ema = run.ema is not None and not keeps_ema(marker.config)
    if begins_ema:
        tensors = {name: value for name, value in tensors.items() if not name.startswith(f"{EMA}/")}
    run.runtime.together(lambda: load_tensors(checkpoint.folder, tensors))
    if run.ema is not None and begins_ema:
        run.ema.start()
    for name, value in vars(marker.progress).items():
        setattr(run.progress, name, value)
    set_step(run.trainable.optimizer, run.progress.counted_updates)
    run.meter.load_state(marker.meter)
    set_random_states(marker.random_state, marker.cuda_random_states, run.runtime)
    logger.info(
        "going on from %s: epoch %d, step %s",
        checkpoint.folder,
        run.progress.epoch + 1,
        f"{run.progress.step:,}",
    )


def begin_with(run: TrainingRun, former: TrainedModel) -> None:
    """Gives ``run``, before its first step, the weights of another one and, if they are wanted, its optimizers' states."""
    open_checkpoint(former.folder, run.runtime)
    if run.config.warm_start.optimizer:
        create_states(run.trainable.optimizer)
        tensors = {name: value for name, value in run_tensors(run).items() if not name.startswith(f"{EMA}/")}
        run.progress.earlier_updates = former.marker.progress.counted_updates
    else:
        tensors = collect_weights(run.trainable.model)
    run.runtime.together(lambda: load_tensors(former.folder, tensors))
    if run.config.warm_start.optimizer:
        set_step(run.trainable.optimizer, run.progress.counted_updates)
    if run.ema is not None:
        run.ema.start()
    logger.info(
        "beginning with the weights of %s, trained on %s: %s",
        former.folder,
        former.config.data.path,
        count(former.marker.progress.step, "step"),
    )


def run_tensors(run: TrainingRun) -> Tensors:
    """Every tensor of ``run`` under names that no plan changes."""
    kinds = optimizer_kinds(run.trainable.tables, run.config.optimizer.sparse)
    tensors = collect_tensors(run.trainable.model, run.trainable.optimizer, kinds)
    return tensors | run.ema.tensors() if run.ema else tensors
