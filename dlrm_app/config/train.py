"""The configuration of dlrm-train. Values and their explanations stand in conf/train.yaml and its groups."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from dlrm_app.config.checks import at_least_zero, batch_rows, one_of, positive, threads_problems, within
from dlrm_app.config.logging import LoggingConfig, ReportConfig
from dlrm_app.config.model import ModelConfig
from dlrm_app.config.optimizer import OptimizerConfig, ScheduleConfig
from dlrm_app.config.sharding import ShardingConfig, TopologyConfig

MINUTES_OF_A_YEAR = 365 * 24 * 60
"""A time limit for whose end torch can still name the nanosecond."""
PRECISIONS = ("fp32", "bf16", "auto")
COMPILES = (False, True, "auto")
KERNELS = ("compiled", "libraries")
PIPELINES = ("base", "sparse_dist", "prefetch")


@dataclass(slots=True)
class DataConfig:
    path: str = MISSING
    lanes: int | None = None
    shuffle: bool = MISSING
    prefetch_batches: int = MISSING
    decode_workers: int | None = None
    verify: bool = MISSING


@dataclass(slots=True)
class TablesConfig:
    """See ``dlrm_app.tables.specs`` for what each of ``specs`` holds. ``data_types``: by pattern of table names."""

    from_dataset: bool = False
    embedding_dim: int | None = None
    pooling: str = "sum"
    data_type: str = "fp32"
    data_types: dict[str, str] = field(default_factory=dict)
    init: str = "uniform"
    init_scale: float | None = None
    specs: list[Any] = field(default_factory=list)


LEAST_EVALUATION_ROWS = 4096
"""Of a batch on a rank, where nothing else is asked for."""


@dataclass(slots=True)
class TrainerConfig:
    epochs: int = MISSING
    global_batch_size: int = MISSING
    seed: int = MISSING
    deterministic: bool = MISSING
    micro_batches: int = 1
    calibrate: bool = False
    max_steps: int | None = None
    log_every_steps: int = MISSING
    on_nonfinite: str = MISSING
    max_skipped: int = MISSING
    threads: int | None = None
    pipeline: str = "sparse_dist"
    numa: bool = MISSING
    timeout_minutes: float = MISSING
    precision: str = MISSING
    tf32: bool = MISSING
    compile: Any = False
    kernels: str = "compiled"

    def num_steps(self, num_rows: int) -> int:
        """Steps of a whole run over ``num_rows`` training rows."""
        steps = self.epochs * (num_rows // self.global_batch_size)
        return steps if self.max_steps is None else min(steps, self.max_steps)


@dataclass(slots=True)
class EvaluationConfig:
    batch_size: int | None = None
    every_steps: int | None = None
    per_epoch: int | None = None
    table_health: bool = True
    group_by: str | None = None
    target_auc: float | None = None
    patience: int | None = None
    test: bool = True

    def problems(self) -> list[str]:
        """Counts below 1, a target that is no AUC, and two rhythms at once."""
        problems = [
            *([] if self.batch_size is None else batch_rows("evaluation.batch_size", self.batch_size)),
            *positive("evaluation.every_steps", self.every_steps),
            *positive("evaluation.per_epoch", self.per_epoch),
            *positive("evaluation.patience", self.patience),
            *within("evaluation.target_auc", 1 if self.target_auc is None else self.target_auc, 0, 1),
        ]
        if self.every_steps is not None and self.per_epoch is not None:
            problems.append("evaluation.every_steps and evaluation.per_epoch both say when: set one to null")
        return problems


@dataclass(slots=True)
class DistillationConfig:
    scores: str | None = None
    share: float = 0.8


@dataclass(slots=True)
class WarmStartConfig:
    checkpoint: str | None = None
    optimizer: bool = True


@dataclass(slots=True)
class CheckpointConfig:
    every_steps: int | None = None
    every_minutes: float | None = None
    every_epoch: bool = MISSING
    keep_last: int = MISSING
    keep_best: int = MISSING
    asynchronous: bool = MISSING


@dataclass(slots=True)
class TrainConfig:
    data: DataConfig = field(default_factory=DataConfig)
    tables: TablesConfig = field(default_factory=TablesConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    sharding: ShardingConfig = field(default_factory=ShardingConfig)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    distillation: DistillationConfig = field(default_factory=DistillationConfig)
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    profiler: bool = MISSING
    resume: str = MISSING
    output: str | None = None

    def evaluation_rows(self, num_ranks: int, device_type: str) -> int:
        """Rows of an evaluation's batch on each rank."""
        if self.evaluation.batch_size is not None:
            return self.evaluation.batch_size
        # measured on CPU (benchmarks/evaluation.py): a larger batch leaves its caches
        at_training = self.trainer.global_batch_size // num_ranks if device_type == "cuda" else 0
        return max(LEAST_EVALUATION_ROWS, 2 * at_training)

    def problems(self) -> list[str]:
        """What types cannot express and no data is needed to see; every problem, with what to do about it."""
        return [
            *positive("trainer.epochs", self.trainer.epochs),
            *positive("trainer.global_batch_size", self.trainer.global_batch_size),
            *positive("trainer.log_every_steps", self.trainer.log_every_steps),
            *positive("trainer.max_steps", self.trainer.max_steps),
            *threads_problems("trainer.threads", self.trainer.threads),
            *one_of("trainer.on_nonfinite", self.trainer.on_nonfinite, ("stop", "skip")),
            *positive("trainer.max_skipped", self.trainer.max_skipped),
            *_micro_batch_problems(self.trainer.micro_batches, self.model),
            *_minutes_problems("trainer.timeout_minutes", self.trainer.timeout_minutes),
            *positive("data.lanes", self.data.lanes),
            *positive("data.prefetch_batches", self.data.prefetch_batches),
            *positive("data.decode_workers", self.data.decode_workers),
            *within("distillation.share", self.distillation.share, 0, 1),
            *self.evaluation.problems(),
            *positive("checkpoint.every_steps", self.checkpoint.every_steps),
            *positive("checkpoint.keep_last", self.checkpoint.keep_last),
            *at_least_zero("checkpoint.keep_best", self.checkpoint.keep_best),
            *_resume_problems(self),
            *self.logging.problems(),
            *at_least_zero("trainer.seed", self.trainer.seed),
            *self.model.problems(),
            *self.optimizer.problems(),
            *self.schedule.problems(),
            *one_of("trainer.precision", self.trainer.precision, PRECISIONS),
            *_compile_problems(self.trainer.compile),
            *one_of("trainer.kernels", self.trainer.kernels, KERNELS),
            *one_of("trainer.pipeline", self.trainer.pipeline, PIPELINES),
            *self.sharding.problems(),
            *self.topology.problems(),
        ]


def _compile_problems(value: object) -> list[str]:
    return [] if value in COMPILES else [f"trainer.compile must be one of false, true, auto, got {value!r}"]


def _micro_batch_problems(count: int, model: ModelConfig) -> list[str]:
    key = "trainer.micro_batches"
    problems = positive(key, count)
    if count > 1 and model.batch_norm:
        problems.append(
            f"{key}={count} shows batch norm a part of the batch at a time, which would be another model: set {key}=1 or "
            "model.batch_norm=false"
        )
    if count > 1 and model.ensemble_size > 1:
        problems.append(
            f"{key}={count} does not cut an ensemble's rows, which are several batches already: set {key}=1"
        )
    return problems


def _resume_problems(config: "TrainConfig") -> list[str]:
    problems = _minutes_problems("checkpoint.every_minutes", config.checkpoint.every_minutes)
    if config.logging.mllog and config.resume != "none":
        problems.append(
            f"logging.mllog=true times a run from its first step to its last, which resume={config.resume} cannot: leave one out"
        )
    if config.resume == "auto" and config.output is None:
        problems.append("resume=auto goes on with the run in output, which is not given: add output=RUN")
    return problems


def _minutes_problems(key: str, minutes: float | None) -> list[str]:
    if minutes is None or 0 < minutes <= MINUTES_OF_A_YEAR:
        return []
    return [f"{key} must be positive and at most {MINUTES_OF_A_YEAR} (a year), got {minutes}"]
