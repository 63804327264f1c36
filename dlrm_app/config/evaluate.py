"""The configuration of dlrm-evaluate. Values and their explanations stand in conf/evaluate.yaml."""

from dataclasses import dataclass, field

from omegaconf import MISSING

from dlrm_app.config.checks import batch_rows, one_of, positive, threads_problems, within
from dlrm_app.config.sharding import ShardingConfig, TopologyConfig

SPLITS = ("train", "val", "test")


@dataclass(slots=True)
class EvaluationDataConfig:
    path: str | None = None
    prefetch_batches: int = MISSING
    decode_workers: int | None = None
    verify: bool = MISSING


@dataclass(slots=True)
class PermutationsConfig:
    repeats: int = MISSING
    rows: int = MISSING
    seed: int = MISSING

    def problems(self) -> list[str]:
        """Every problem, with what to do about it."""
        return [
            *within("permutations.repeats", self.repeats, 2, 1000),
            *within("permutations.rows", self.rows, 2, 1 << 27),
            *within("permutations.seed", self.seed, 0, (1 << 63) - 1),
        ]


@dataclass(slots=True)
class EvaluateConfig:
    checkpoint: str = MISSING
    against: str | None = None
    which: str = MISSING
    ema: bool = MISSING
    data: EvaluationDataConfig = field(default_factory=EvaluationDataConfig)
    split: str = MISSING
    batch_size: int | None = None
    group_by: str | None = None
    confidence: float = MISSING
    importance: bool = MISSING
    permutations: PermutationsConfig = field(default_factory=PermutationsConfig)
    sharding: ShardingConfig = field(default_factory=ShardingConfig)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    threads: int | None = None
    output: str | None = None
    report: str | None = None

    def problems(self) -> list[str]:
        """What types cannot express and no data is needed to see; every problem, with what to do about it."""
        problems = [
            *one_of("split", self.split, SPLITS),
            *one_of("which", self.which, ("newest", "best")),
            *([] if self.batch_size is None else batch_rows("batch_size", self.batch_size)),
            *positive("data.prefetch_batches", self.data.prefetch_batches),
            *positive("data.decode_workers", self.data.decode_workers),
            *threads_problems("threads", self.threads),
            *self.sharding.problems(),
            *self.topology.problems(),
            *self.permutations.problems(),
        ]
        if not 0 < self.confidence < 1:
            problems.append(f"confidence must lie between 0 and 1, as 0.95, got {self.confidence}")
        if self.output is not None and not self.output.endswith(".json"):
            problems.append(f"output is a JSON file: give a name that ends in .json, got {self.output!r}")
        if self.report is not None and not self.report.endswith(".html"):
            problems.append(f"report is a page: give a name that ends in .html, got {self.report!r}")
        return problems
