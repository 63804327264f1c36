"""The configuration of dlrm-train, which checkpoints record too.

Values and their explanations are in conf/train.yaml and its groups.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from dlrm_app.config.metrics import deciding_problems, ranking_problems
from dlrm_app.config.optimizer import OptimizerConfig, ScheduleConfig
from dlrm_app.config.schema import REQUIRED, Section, build
from dlrm_app.config.sharding import ShardingConfig, TopologyConfig
from dlrm_app.config.values import (
    BatchRows,
    BelowOne,
    Count,
    Minutes,
    Seed,
    Several,
    Share,
    Threads,
    Whole,
    choice_problems,
)
from dlrm_app.errors import DataError, Problem
from dlrm_app.records import Json, leaves
from dlrm_app.typed import install_command


@dataclass(slots=True)
class DataConfig(Section):
    path: str = REQUIRED
    lanes: Count | None = None
    shuffle: bool = REQUIRED
    prefetch_batches: Count = REQUIRED
    decode_workers: Count | None = None
    verify: bool = REQUIRED


@dataclass(slots=True)
class TablesConfig(Section):
    """The tables.

    ``dlrm_app.tables.specs`` describes the entries of ``specs``. ``data_types``: pattern of table names → type.
    """

    from_dataset: bool = False
    embedding_dim: int | None = None
    pooling: str = "sum"
    data_type: str = "fp32"
    data_types: dict[str, str] = field(default_factory=dict)
    init: str = "uniform"
    init_scale: float | None = None
    specs: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class VectorModelConfig(Section):
    """How vectors that are not trained become vectors of the model."""

    norm: Literal["l2"] | None = "l2"
    project: Count | None = None


@dataclass(slots=True)
class ExpertsConfig(Section):
    """The MLPs that labels share behind the interaction. ``own`` and ``levels`` are those of ple alone; None: 1."""

    mlp: list[Count] = field(default_factory=lambda: [64])
    shared: Count = 4
    own: Count | None = None
    levels: Count | None = None

    def rules(self) -> Iterator[Problem]:
        if not self.mlp:
            yield Problem("mlp", "needs a layer", "such as [64]", self.mlp)


@dataclass(slots=True)
class ModelConfig(Section):
    """The model. The registry in model/architectures checks which keys an architecture needs."""

    kind: str = REQUIRED
    bottom_mlp: list[Count] = REQUIRED
    top_mlp: list[Count] = REQUIRED
    dcn_num_layers: int | None = None
    dcn_low_rank_dim: int | None = None
    projection_branch1: list[Count] | None = None
    projection_branch2: list[Count] | None = None
    stride: Count | None = None
    num_heads: Count | None = None
    finalnet_mlp2: list[Count] | None = None
    finalnet_dropout2: BelowOne | None = None
    finalnet_gates: bool = False
    finalnet_relu: bool = False
    dcnv3_num_linear_layers: Count | None = None
    dcnv3_linear_dropout: BelowOne | None = None
    dcnv3_layer_norm: bool = False
    qnn_num_rows: Count | None = None
    ensemble_size: Count = 1
    dense_embedding_dim: Count | None = None
    dense_knots: Several | None = None
    initial_bias: Literal["base_rate", "random"] = "base_rate"
    batch_norm: bool = False
    dropout: BelowOne = 0.0
    bottom_dropout: BelowOne | None = None
    tasks: Literal["shared", "mmoe", "ple"] = "shared"
    experts: ExpertsConfig = field(default_factory=ExpertsConfig)
    settings: dict[str, Any] = field(default_factory=dict)
    vectors: VectorModelConfig = field(default_factory=VectorModelConfig)


@dataclass(slots=True)
class TrainerConfig(Section):
    epochs: Count = REQUIRED
    global_batch_size: Count = REQUIRED
    seed: Seed = REQUIRED
    deterministic: bool = REQUIRED
    calibrate: bool = REQUIRED
    weights: bool = REQUIRED
    balance_labels: bool | None = None  # None: a run from before this key, as false
    max_steps: Count | None = None
    log_every_steps: Count = REQUIRED
    threads: Threads | None = None
    pipeline: Literal["base", "sparse_dist", "prefetch"] = REQUIRED
    timeout_minutes: Minutes = REQUIRED
    precision: Literal["fp32", "bf16"] = REQUIRED
    tf32: bool = REQUIRED
    compile: bool = REQUIRED
    kernels: Literal["compiled", "libraries"] = REQUIRED

    def num_steps(self, num_rows: int) -> int:
        """Steps of a whole run over ``num_rows`` training rows."""
        steps = self.epochs * (num_rows // self.global_batch_size)
        return steps if self.max_steps is None else min(steps, self.max_steps)


@dataclass(slots=True)
class DistillationConfig(Section):
    scores: str | None = None
    share: Share = REQUIRED


@dataclass(slots=True)
class WarmStartConfig(Section):
    checkpoint: str | None = None
    optimizer: bool = REQUIRED
    allow: list[Literal["features", "dense", "layers", "label"]] = field(default_factory=list)


@dataclass(slots=True)
class EvaluationConfig(Section):
    batch_size: BatchRows | None = None
    every_steps: Count | None = None
    per_epoch: Count | None = None
    group_by: str | None = None
    ranking: list[Count] = REQUIRED
    best: str = REQUIRED
    target_auc: Share | None = None
    patience: Count | None = None
    test: bool = REQUIRED

    def rules(self) -> Iterator[Problem]:
        if self.every_steps is not None and self.per_epoch is not None:
            yield Problem("every_steps", "and evaluation.per_epoch both say when", "set one to null")
        yield from ranking_problems(self.ranking)
        yield from deciding_problems("best", self.best, self.group_by, self.ranking)


@dataclass(slots=True)
class CheckpointConfig(Section):
    every_steps: Count | None = None
    every_minutes: Minutes | None = None
    every_epoch: bool = REQUIRED
    keep_last: Count = REQUIRED
    keep_best: Whole = REQUIRED
    asynchronous: bool = REQUIRED


TRACKER_ENTRY_POINTS = "dlrm_app.trackers"
"""The group of entry points in which other packages name their trackers."""
TRACKER_EXTRAS = {"tensorboard": "watch", "mlflow": "mlflow", "wandb": "wandb"}
"""Built-in tracker, which is also its package's name → the extra that installs it."""


@dataclass(slots=True)
class LoggingConfig(Section):
    tensorboard: bool = REQUIRED
    trackers: list[str] = field(default_factory=list)

    @property
    def all_trackers(self) -> list[str]:
        """The trackers to tell of the run."""
        return [*(["tensorboard"] if self.tensorboard else []), *self.trackers]

    def rules(self) -> Iterator[Problem]:
        others = [point.name for point in entry_points(group=TRACKER_ENTRY_POINTS)] if self.trackers else []
        for name in dict.fromkeys(self.all_trackers):
            key = "tensorboard" if name == "tensorboard" and self.tensorboard else "trackers"
            if name in TRACKER_EXTRAS and find_spec(name) is None:
                rule = f"needs the package {name}, which is not installed"
                yield Problem(key, rule, install_command(TRACKER_EXTRAS[name]))
            elif name not in (*TRACKER_EXTRAS, *others):
                yield from choice_problems("trackers", name, [*TRACKER_EXTRAS, *others])


@dataclass(slots=True)
class RunReportConfig(Section):
    enabled: bool = REQUIRED


@dataclass(slots=True)
class TrainConfig(Section):
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
    report: RunReportConfig = field(default_factory=RunReportConfig)
    plugins: list[str] = field(default_factory=list)
    profiler: bool = REQUIRED
    resume: str = REQUIRED
    output: str | None = None

    def rules(self) -> Iterator[Problem]:
        if self.resume == "auto" and self.output is None:
            yield Problem("resume=auto", "needs output, the folder of the run", "add output=RUN")
        rule = "would evict rows that trainer.pipeline=prefetch holds in the cache for the current batch"
        cure = "set it to null, or use trainer.pipeline=sparse_dist"
        for key in ("every_steps", "per_epoch"):
            if self.trainer.pipeline == "prefetch" and getattr(self.evaluation, key) is not None:
                yield Problem(f"evaluation.{key}", rule, cure)


def read_saved_config(values: Json, folder: Path) -> TrainConfig:
    """The configuration of dlrm-train from ``values``, which are its ``asdict``.

    Raises DataError, naming the checkpoint ``folder``, for keys that are unknown, missing or of another type.
    """
    problems: list[Problem] = []
    config = build(TrainConfig, values, problems)
    if config is None or problems:
        cure = "use the dlrm-app that saved it"
        raise DataError(Problem(str(folder), "has the configuration of another version", cure), *problems)
    return config


def changed_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The differences of two configurations, such as ``trainer.epochs 1 → 2``, without resume and output."""
    then, now = dict(leaves(before)), dict(leaves(after))
    return [
        f"{key} {then.get(key)} → {now.get(key)}"
        for key in dict.fromkeys([*then, *now])
        if then.get(key) != now.get(key) and key not in ("resume", "output")
    ]
