"""The ``optimizer`` and ``schedule`` parts of dlrm-train's configuration."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Literal

from msgspec import Meta

from dlrm_app.config.schema import REQUIRED, Section, types_of
from dlrm_app.config.values import (
    BelowOne,
    Count,
    NonNegative,
    Positive,
    Share,
    Whole,
    converted,
    type_problem,
)
from dlrm_app.errors import Problem, refuse_if

DenseKind = Literal["sgd", "adagrad", "adam", "adamw"]
DENSE_STATES: dict[str, int] = {"sgd": 0, "adagrad": 1, "adam": 2, "adamw": 2}
"""Kind → number of floats that it keeps for each weight."""


@dataclass(slots=True)
class OptimizerSettings(Section):
    kind: str = REQUIRED
    lr: Positive = REQUIRED
    eps: NonNegative = 1e-8
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    weight_decay: NonNegative = 0.0


@dataclass(slots=True)
class SparseSettings(OptimizerSettings):
    """The optimizer of tables.

    The registry in tables/sparse_optimizers has the kinds; sharding/constraints says which a table can have.
    """

    max_gradient: Positive | None = None
    stochastic_rounding: bool | None = None
    weight_decay_mode: Literal["coupled", "decoupled"] | None = None
    updated_rows: Literal["touched", "all"] = "touched"


@dataclass(slots=True)
class DenseSettings(OptimizerSettings):
    kind: DenseKind = REQUIRED
    momentum: BelowOne = 0.0
    clip_norm: Positive | None = None
    ema_decay: Annotated[float, Meta(gt=0, lt=1)] | None = None

    def rules(self) -> Iterator[Problem]:
        if self.kind != "sgd" and self.momentum:
            yield from self.needless("momentum", rule="is only for kind=sgd")


@dataclass(slots=True)
class OptimizerConfig(Section):
    sparse: SparseSettings = field(default_factory=SparseSettings)
    dense: DenseSettings = field(default_factory=DenseSettings)


def change_settings(settings: SparseSettings, changes: Mapping[str, object]) -> SparseSettings:
    """``settings`` with a table's own ``changes``. Raises ConfigError for a value of the wrong type."""
    if not changes:  # most tables have none, and checking types of thousands of tables takes time
        return replace(settings)
    kinds = types_of(SparseSettings)
    faults = [type_problem(f"optimizer.{key}", value, kinds[key]) for key, value in changes.items()]
    refuse_if([fault for fault in faults if fault is not None])
    return replace(settings, **{key: converted(value, kinds[key]) for key, value in changes.items()})


@dataclass(slots=True)
class ScheduleSettings(Section):
    kind: Literal["constant", "polynomial", "cosine", "step", "plateau"] = "constant"
    warmup_steps: Whole = 0
    decay_start: int | None = None
    decay_steps: Count | None = None
    power: Positive = 2.0
    end_factor: Share = 0.0
    milestones: list[int] | None = None
    step_factor: Positive = 0.1
    patience: Whole = 0

    @property
    def first_decay_step(self) -> int:
        """The number of steps before the decay."""
        return self.warmup_steps if self.decay_start is None else self.decay_start

    def rules(self) -> Iterator[Problem]:
        if self.kind not in ("polynomial", "cosine"):
            keys = [key for key in ("decay_start", "decay_steps") if getattr(self, key)]
            yield from self.needless(*keys, rule="is only for kind=polynomial or cosine")
        if self.kind != "step":
            yield from self.needless("milestones", rule="is only for kind=step")
        if self.kind != "plateau" and self.patience:
            yield Problem("patience", "is only for kind=plateau", "leave it out", self.patience)
        if self.kind == "plateau" and self.step_factor >= 1:
            yield Problem("step_factor", "must be below 1 with kind=plateau", value=self.step_factor)
        if self.decay_start is not None and self.decay_start < self.warmup_steps:
            rule = f"must not come before the warm-up ends at step {self.warmup_steps}"
            yield Problem("decay_start", rule, "raise it, or lower warmup_steps", self.decay_start)
        lowest, steps = max(1, self.warmup_steps), self.milestones or []
        if self.kind == "step" and not steps:
            cure = "give the steps after which the rate falls, say [10000,20000]"
            yield Problem("milestones", "is needed by kind=step", cure)
        elif self.kind == "step" and any(low >= high for low, high in pairwise([lowest - 1, *steps])):
            rule = f"must rise, beginning at {lowest} (the end of the warm-up) or later"
            yield Problem("milestones", rule, value=self.milestones)


@dataclass(slots=True)
class ScheduleConfig(Section):
    sparse: ScheduleSettings = field(default_factory=ScheduleSettings)
    dense: ScheduleSettings = field(default_factory=ScheduleSettings)
    restore_best: bool = False

    @property
    def plateaus(self) -> list[str]:
        """The parts whose rates follow the evaluations on val."""
        return [part for part in ("sparse", "dense") if getattr(self, part).kind == "plateau"]

    def rules(self) -> Iterator[Problem]:
        if self.restore_best and not self.plateaus:
            yield Problem("restore_best", "is only for schedule=plateau", "leave it out", value=True)


def schedule_problems(schedule: ScheduleConfig, num_steps: int) -> list[Problem]:
    """Problems: decays that must end with a run of ``num_steps``, but would not begin before its end."""
    problems = []
    for part, settings in (("sparse", schedule.sparse), ("dense", schedule.dense)):
        is_open = settings.kind in ("polynomial", "cosine") and settings.decay_steps is None
        if is_open and num_steps and settings.first_decay_step >= num_steps:
            key = "warmup_steps" if settings.decay_start is None else "decay_start"
            rule = f"must be less than the run's {num_steps} steps, because the decay ends with the run"
            cure = f"lower it, train longer, or set schedule.{part}.decay_steps"
            problems.append(Problem(f"schedule.{part}.{key}", rule, cure, settings.first_decay_step))
    return problems
