"""What the parts of a training run share."""

import math
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dlrm_app.config.train import TrainConfig
from dlrm_app.data.manifest import Manifest
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.training.eval_schedule import reason_to_stop
from dlrm_app.training.loss_meter import LossMeter
from dlrm_app.training.run_folder import RunFolder
from dlrm_app.training.schedules import LearningRates
from dlrm_app.training.setup import Trainable
from dlrm_app.training.skipping import LossGate
from dlrm_app.training.table_health.health import TableHealth


@dataclass
class Progress:
    """How far a run has come: epochs done and batches of the one under way, steps and samples over all of them."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    samples: int = 0
    train_seconds: float = 0.0
    train_loss: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    """Steps that changed nothing, for their loss was no finite number (trainer.on_nonfinite=skip)."""
    evals: list[dict[str, Any]] = field(default_factory=list)

    @property
    def updates(self) -> int:
        """Steps that changed the model: what optimizers count."""
        return self.step - len(self.skipped)

    @property
    def last_epoch(self) -> int:
        """The epoch of the last step taken."""
        return self.epoch if self.batch else max(0, self.epoch - 1)

    def has_evaluated(self, split: str) -> bool:
        """Whether ``split`` was evaluated after the last step taken."""
        return any(event["split"] == split and event["step"] == self.step for event in self.evals)

    def best_val(self) -> dict[str, Any] | None:
        """The evaluation on val with the highest AUC so far."""
        val = [event for event in self.evals if event["split"] == "val"]
        return max(val, key=lambda event: -1.0 if math.isnan(event["auc"]) else event["auc"], default=None)


@dataclass(frozen=True)
class TrainingRun:
    """Everything that the steps of one run share; only ``progress`` and ``meter`` change."""

    config: TrainConfig
    runtime: Runtime
    manifest: Manifest
    trainable: Trainable
    folder: RunFolder
    health: TableHealth
    progress: Progress
    meter: LossMeter
    gate: LossGate | None = None
    """What leaves steps out whose loss is no finite number; None: they end the run."""
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
    def num_steps(self) -> int:
        """Steps of the whole run."""
        return self.config.trainer.num_steps(self.manifest.splits["train"].rows)

    @cached_property
    def learning_rates(self) -> LearningRates:
        """What sets the learning rates before each step: a function of the step's number alone."""
        config = self.config
        return LearningRates(
            self.trainable.optimizer, self.trainable.tables, config.optimizer, config.schedule, self.num_steps
        )

    @property
    def batches_per_epoch(self) -> int:
        """Global batches of one epoch."""
        return self.manifest.splits["train"].rows // self.config.trainer.global_batch_size
