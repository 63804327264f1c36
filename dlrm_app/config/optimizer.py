"""The ``optimizer`` and ``schedule`` parts of dlrm-train's configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from omegaconf import MISSING

from dlrm_app.config.checks import above_zero, at_least_zero, one_of, positive, within
from dlrm_app.config.schema import converted, type_problem, types_of
from dlrm_app.errors import refuse_if

DENSE_STATES = {"sgd": 0, "adagrad": 1, "adam": 2, "adamw": 2}
"""Kind → floats that it keeps for each weight."""
SCHEDULES = ("constant", "polynomial", "cosine", "step", "plateau")
PLATEAU_METRICS = ("auc", "logloss")
DECAY_MODES = ("coupled", "decoupled")
UPDATED_ROWS = ("touched", "all")


@dataclass(slots=True)
class OptimizerSettings:
    kind: str = MISSING
    lr: float = MISSING
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0


@dataclass(slots=True)
class SparseSettings(OptimizerSettings):
    max_gradient: float | None = None
    stochastic_rounding: bool | None = None
    weight_decay_mode: str | None = None
    updated_rows: str = "touched"


@dataclass(slots=True)
class DenseSettings(OptimizerSettings):
    momentum: float = 0.0
    clip_norm: float | None = None
    ema_decay: float | None = None


@dataclass(slots=True)
class OptimizerConfig:
    sparse: SparseSettings = field(default_factory=SparseSettings)
    dense: DenseSettings = field(default_factory=DenseSettings)

    def problems(self) -> list[str]:
        """Values out of their range, or without effect."""
        return [
            *sparse_problems("optimizer.sparse", self.sparse),
            *one_of("optimizer.dense.kind", self.dense.kind, tuple(DENSE_STATES)),
            *_common_problems("optimizer.dense", self.dense),
            *_below_one("optimizer.dense.momentum", self.dense.momentum),
            *above_zero("optimizer.dense.clip_norm", self.dense.clip_norm),
            *_ema_problems(self.dense.ema_decay),
            *_needless("optimizer.dense", "momentum", self.dense.momentum, self.dense.kind, ("sgd",)),
        ]


def sparse_problems(prefix: str, settings: SparseSettings) -> list[str]:
    """What is wrong with a sparse optimizer's figures: those of ``optimizer.sparse`` or of one table.

    Kinds are checked where they are registered, see tables/sparse_optimizers.
    """
    return [
        *_common_problems(prefix, settings),
        *above_zero(f"{prefix}.max_gradient", settings.max_gradient),
        *one_of(f"{prefix}.updated_rows", settings.updated_rows, UPDATED_ROWS),
        *(
            one_of(f"{prefix}.weight_decay_mode", settings.weight_decay_mode, DECAY_MODES)
            if settings.weight_decay_mode is not None
            else []
        ),
    ]


def _common_problems(prefix: str, settings: OptimizerSettings) -> list[str]:
    problems = above_zero(f"{prefix}.lr", settings.lr)
    for key in ("eps", "weight_decay"):
        problems += at_least_zero(f"{prefix}.{key}", getattr(settings, key))
    for key in ("beta1", "beta2"):
        problems += _below_one(f"{prefix}.{key}", getattr(settings, key))
    return problems


def _ema_problems(decay: float | None) -> list[str]:
    if decay is None or 0 < decay < 1:
        return []
    return [
        f"optimizer.dense.ema_decay must lie between 0 and 1, as 0.999, got {decay}: null is for no average"
    ]


def _below_one(key: str, value: float) -> list[str]:
    return [] if 0 <= value < 1 else [f"{key} must lie in [0, 1), got {value}"]


def change_settings(settings: SparseSettings, changes: Mapping[str, Any]) -> SparseSettings:
    """``settings`` with a table's own ``changes``. Raises ConfigError for a value of the wrong type."""
    if not changes:  # most tables have none, and checking types takes its time for thousands of them
        return replace(settings)
    kinds = types_of(SparseSettings)
    faults = [type_problem(f"optimizer.{key}", value, kinds[key]) for key, value in changes.items()]
    refuse_if([fault for fault in faults if fault is not None])
    return replace(settings, **{key: converted(value, kinds[key]) for key, value in changes.items()})


@dataclass(slots=True)
class ScheduleSettings:
    kind: str = "constant"
    warmup_steps: int = 0
    decay_start: int | None = None
    decay_steps: int | None = None
    power: float = 2.0
    end_factor: float = 0.0
    milestones: list[int] | None = None
    step_factor: float = 0.1
    metric: str = "auc"
    patience: int = 0
    threshold: float = 0.0

    @property
    def first_decay_step(self) -> int:
        """How many steps come before the decay."""
        return self.warmup_steps if self.decay_start is None else self.decay_start


@dataclass(slots=True)
class ScheduleConfig:
    sparse: ScheduleSettings = field(default_factory=ScheduleSettings)
    dense: ScheduleSettings = field(default_factory=ScheduleSettings)

    def problems(self) -> list[str]:
        """Values out of their range, out of order, or without effect."""
        return [
            *_schedule_problems("schedule.sparse", self.sparse),
            *_schedule_problems("schedule.dense", self.dense),
        ]


def schedule_problems(schedule: ScheduleConfig, num_steps: int) -> list[str]:
    """Decays that were to end with a run of ``num_steps``, but would not have begun by then."""
    problems = []
    for part, settings in (("sparse", schedule.sparse), ("dense", schedule.dense)):
        is_open = settings.kind in ("polynomial", "cosine") and settings.decay_steps is None
        if is_open and num_steps and settings.first_decay_step >= num_steps:
            key = "warmup_steps" if settings.decay_start is None else "decay_start"
            problems.append(
                f"schedule.{part}.{key} must be less than the run's {num_steps} steps, for the decay is to end with "
                f"the run, got {settings.first_decay_step}: lower it, train longer, or set schedule.{part}.decay_steps"
            )
    return problems


def _schedule_problems(prefix: str, schedule: ScheduleSettings) -> list[str]:
    falling = ("polynomial", "cosine")
    problems = [
        *one_of(f"{prefix}.kind", schedule.kind, SCHEDULES),
        *at_least_zero(f"{prefix}.warmup_steps", schedule.warmup_steps),
        *positive(f"{prefix}.decay_steps", schedule.decay_steps),
        *above_zero(f"{prefix}.power", schedule.power),
        *within(f"{prefix}.end_factor", schedule.end_factor, 0, 1),
        *above_zero(f"{prefix}.step_factor", schedule.step_factor),
        *one_of(f"{prefix}.metric", schedule.metric, PLATEAU_METRICS),
        *at_least_zero(f"{prefix}.patience", schedule.patience),
        *at_least_zero(f"{prefix}.threshold", schedule.threshold),
        *_needless(prefix, "decay_start", schedule.decay_start, schedule.kind, falling),
        *_needless(prefix, "decay_steps", schedule.decay_steps, schedule.kind, falling),
        *_needless(prefix, "milestones", schedule.milestones, schedule.kind, ("step",)),
        *_needless(prefix, "patience", schedule.patience, schedule.kind, ("plateau",)),
        *_needless(prefix, "threshold", schedule.threshold, schedule.kind, ("plateau",)),
    ]
    if schedule.decay_start is not None and schedule.decay_start < schedule.warmup_steps:
        problems.append(
            f"{prefix}.decay_start must not come before the warm-up ends at step {schedule.warmup_steps}, "
            f"got {schedule.decay_start}: raise it, or lower {prefix}.warmup_steps"
        )
    if schedule.kind == "plateau" and schedule.step_factor >= 1:
        problems.append(
            f"{prefix}.step_factor must be below 1 with kind=plateau, for the rate is to fall, got {schedule.step_factor}"
        )
    if schedule.kind == "step":
        problems += _milestone_problems(f"{prefix}.milestones", schedule)
    return problems


def _milestone_problems(key: str, schedule: ScheduleSettings) -> list[str]:
    milestones = schedule.milestones
    if not milestones:
        return [f"{key} is needed by kind=step: give the steps after which the rate falls, say [10000,20000]"]
    lowest = max(1, schedule.warmup_steps)
    if milestones[0] < lowest or any(first >= second for first, second in pairwise(milestones)):
        return [f"{key} must rise, beginning at {lowest} (the end of the warm-up) or later, got {milestones}"]
    return []


def _needless(prefix: str, key: str, value: object, kind: str, kinds: tuple[str, ...]) -> list[str]:
    if not value or kind in kinds:
        return []
    return [
        f"{prefix}.{key} is only for {prefix}.kind={' or '.join(kinds)}, got {value} with {kind}: leave it out"
    ]
