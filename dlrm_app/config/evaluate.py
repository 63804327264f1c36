"""dlrm-evaluate's configuration. Values and their explanations are in conf/evaluate.yaml."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from dlrm_app.config.metrics import metric_of, ranking_problems, unknown_metric
from dlrm_app.config.schema import REQUIRED, DatasetPathConfig, Section
from dlrm_app.config.sharding import ShardingConfig, TopologyConfig
from dlrm_app.config.values import BatchRows, Count, NonNegative, Split, Threads, Which
from dlrm_app.errors import Problem

Between = Annotated[float, Meta(gt=0, lt=1)]


@dataclass(slots=True)
class EvaluationDataConfig(DatasetPathConfig):
    prefetch_batches: Count = REQUIRED
    decode_workers: Count | None = None
    verify: bool = REQUIRED


@dataclass(slots=True)
class ImportanceConfig(Section):
    repeats: Annotated[int, Meta(ge=0, le=1000)] = REQUIRED
    metric: str | None = None
    rows: Count | None = None

    def rules(self) -> Iterator[Problem]:
        if self.metric is not None and metric_of(self.metric) is None:
            yield unknown_metric("metric", self.metric)


@dataclass(slots=True)
class EvaluateConfig(Section):
    checkpoint: str | None = None
    against: str | None = None
    scores: list[str] = field(default_factory=list)
    blend: list[NonNegative] | None = None
    which: Which = REQUIRED
    ema: bool = REQUIRED
    plugins: list[str] = field(default_factory=list)
    data: EvaluationDataConfig = field(default_factory=EvaluationDataConfig)
    split: Split = REQUIRED
    batch_size: BatchRows | None = None
    group_by: str | None = None
    ranking: list[Count] = REQUIRED
    weights: bool = REQUIRED
    by: list[str] = field(default_factory=list)
    importance: ImportanceConfig = field(default_factory=ImportanceConfig)
    other_label: Literal["refuse", "ignore"] = REQUIRED
    confidence: Between = REQUIRED
    sharding: ShardingConfig = field(default_factory=ShardingConfig)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    threads: Threads | None = None
    output: Annotated[str, Meta(pattern=r"\.json$")] | None = None

    def rules(self) -> Iterator[Problem]:
        if self.checkpoint is None:
            if not self.scores:
                cure = "give checkpoint=RUN, or scores=[FILE.parquet]"
                yield Problem("checkpoint", "or scores must say what to evaluate", cure)
            if self.group_by and self.data.path is None:
                yield Problem("group_by", "names a feature of a dataset", "give data.path=", self.group_by)
            if self.by and self.data.path is None:
                yield Problem("by", "names columns of a dataset", "give data.path=", self.by)
            if self.importance.repeats:
                rule = "shuffles the columns that a model reads, and only scores are given"
                yield Problem("importance.repeats", rule, "give checkpoint=RUN", self.importance.repeats)
        yield from ranking_problems(self.ranking)
        for name in {name for name in self.by if self.by.count(name) > 1}:
            yield Problem("by", f"names {name} twice", "once is enough")
        models = (self.checkpoint is not None) + (self.against is not None) + len(self.scores)
        if self.blend is not None and (len(self.blend) != models or models < 2 or not sum(self.blend)):
            rule = f"must hold a weight for each of {models} models, not all 0, of at least two"
            cure = "as in checkpoint=RUN scores=[a.parquet] blend=[0.8,0.2]"
            yield Problem("blend", rule, cure, self.blend)

    def unread(self, key: str) -> str:
        """Settings of a model are not read where only scores are evaluated."""
        is_of_model = key in ("against", "which", "ema", "batch_size", "other_label")
        return "is for checkpoints (checkpoint=RUN)" * (is_of_model and self.checkpoint is None)
