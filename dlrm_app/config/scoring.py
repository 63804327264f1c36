"""The configurations of commands for trained models (dlrm-evaluate, -predict, -export, -serve and -report), and of dlrm-doctor.

Values and their explanations are in conf/<command>.yaml.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from dlrm_app.config.schema import (
    REQUIRED,
    BatchRows,
    Count,
    DatasetPathConfig,
    NonNegative,
    Positive,
    RejectsConfig,
    Section,
    Split,
    Threads,
    Which,
    file_problems,
    required,
    value_problems,
)
from dlrm_app.config.sharding import ShardingConfig, TopologyConfig
from dlrm_app.errors import Problem
from dlrm_app.typed import quoted

Between = Annotated[float, Meta(gt=0, lt=1)]
Format = Literal["aoti", "torchscript", "parquet"]
TableType = Literal["fp32", "fp16", "int8", "int4", "int2"]


@dataclass(slots=True)
class ExportDataConfig(DatasetPathConfig):
    prefetch_batches: Count = REQUIRED


@dataclass(slots=True)
class EvaluationDataConfig(ExportDataConfig):
    decode_workers: Count | None = None
    verify: bool = REQUIRED


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
    other_label: Literal["refuse", "ignore"] = REQUIRED
    confidence: Between = REQUIRED
    sharding: ShardingConfig = field(default_factory=ShardingConfig)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    threads: Threads | None = None
    output: Annotated[str, Meta(pattern=r"\.json$")] | None = None

    def rules(self) -> Iterator[Problem]:
        """Problems: nothing to evaluate, groups without a dataset, or wrong weights of a blend."""
        if self.checkpoint is None:
            if not self.scores:
                cure = "give checkpoint=RUN, or scores=[FILE.parquet]"
                yield Problem("checkpoint", "or scores must say what to evaluate", cure)
            if self.group_by and self.data.path is None:
                yield Problem("group_by", "names a feature of a dataset", "give data.path=", self.group_by)
        models = (self.checkpoint is not None) + (self.against is not None) + len(self.scores)
        if self.blend is not None and (len(self.blend) != models or models < 2 or not sum(self.blend)):
            rule = f"must hold a weight for each of {models} models, not all 0, of at least two"
            cure = "as in checkpoint=RUN scores=[a.parquet] blend=[0.8,0.2]"
            yield Problem("blend", rule, cure, self.blend)

    def unread(self, key: str) -> str:
        """Of scores alone: what loads and runs a model."""
        is_of_model = key in ("against", "which", "ema", "batch_size", "other_label")
        return "is for checkpoints (checkpoint=RUN)" * (is_of_model and self.checkpoint is None)


RESERVED = ("score", "label", "file", "line")
"""Columns of dlrm-predict's output."""


@dataclass(slots=True)
class PredictConfig(Section):
    model: str = REQUIRED
    which: Which = REQUIRED
    ema: bool = REQUIRED
    plugins: list[str] = field(default_factory=list)
    input: Any = None
    labels: bool | None = None
    data: DatasetPathConfig = field(default_factory=DatasetPathConfig)
    split: Split = REQUIRED
    encoding: str | None = REQUIRED
    output: Annotated[str, Meta(pattern=r"\.parquet$")] = REQUIRED
    batch_size: BatchRows = REQUIRED
    unit_mib: Annotated[int, Meta(ge=1, le=256)] = REQUIRED
    rejects: RejectsConfig = field(default_factory=RejectsConfig)
    keep: list[str] = field(default_factory=list)
    threads: Threads | None = None

    def rules(self) -> Iterator[Problem]:
        """Problems: not exactly one kind of rows, or a column kept twice."""
        if (self.input is None) == (self.data.path is None):
            cure = "give either input=FILES, raw logs, or data.path=DATASET with split="
            yield Problem("input", "or data.path must name what to score", cure)
        yield from file_problems("input", self.input)
        rule = "names a column that the scores already have"
        yield from (Problem("keep", rule, "leave it out", name) for name in RESERVED if name in self.keep)

    def unread(self, key: str) -> str:
        """Of each kind of rows: the settings for the other."""
        if self.data.path is None:
            return "is for a dataset (data.path=)" * (key == "split")
        of_logs = ("encoding", "keep", "unit_mib", "rejects.max_fraction")
        return "is for raw logs (input=), the dataset at data.path has its own" * (key in of_logs)


@dataclass(slots=True)
class ExportConfig(Section):
    checkpoint: str | None = None
    which: Which = REQUIRED
    ema: bool = REQUIRED
    plugins: list[str] = field(default_factory=list)
    output: str = REQUIRED
    format: Any = REQUIRED
    quantize: TableType = REQUIRED
    quantize_tables: dict[str, TableType] = field(default_factory=dict)
    cpu: Literal["native", "avx2", "avx512"] = REQUIRED
    shards: Count = REQUIRED
    data: ExportDataConfig = field(default_factory=ExportDataConfig)
    split: Split | None = None
    max_auc_loss: NonNegative = REQUIRED
    judgement: Literal["refuse", "ignore"] = REQUIRED
    since: str | None = None
    base: str | None = None
    apply: str | None = None
    batch_size: BatchRows = REQUIRED
    threads: Threads | None = None

    @property
    def formats(self) -> list[str]:
        """``format`` as a list."""
        return list(self.format) if isinstance(self.format, list) else [self.format]

    def rules(self) -> Iterator[Problem]:
        """Problems: no checkpoint and no delta, or formats that cannot hold the requested tables."""
        yield from value_problems("format", self.formats, list[Format])
        if self.base is None and self.apply is None and not self.checkpoint:
            yield required("checkpoint")
        elif bool(self.base) != bool(self.apply):
            key, other = ("base", "apply=DELTA") if self.base else ("apply", "base=EXPORT")
            yield Problem(key, f"needs {other}: a delta is applied to the export it was made from")
        if not self.formats or len(set(map(str, self.formats))) < len(self.formats):
            yield Problem("format", "must name each file once, and at least one", value=self.format)
        kinds = {f"quantize_tables.{pattern}": kind for pattern, kind in self.quantize_tables.items()}
        kinds = {"quantize": self.quantize, **kinds}
        if self.shards > 1:
            if others := [name for name in self.formats if name != "torchscript"]:
                rule = f"is for format=torchscript only, not {others[0]}"
                yield Problem("shards", rule, "give format=torchscript, or shards=1", self.shards)
            for key, kind in kinds.items():
                if not kind.startswith("int"):
                    cure = "give one of them, or shards=1"
                    yield Problem(key, "must be int8, int4 or int2 in shards", cure, kind)
        integers = sorted(kind for kind in kinds.values() if kind.startswith("int"))
        if "parquet" in self.formats and integers:
            rule = f"holds plain weights, which are fp32 or fp16, not {integers[0]}"
            yield Problem("format=parquet", rule, "quantize in format=aoti or torchscript")

    def unread(self, key: str) -> str:
        """Where a delta is applied: what would change a full export."""
        is_read = not (self.base and self.apply) or key in ("base", "apply", "output", "threads")
        return "" if is_read else "is not read where a delta is applied"


@dataclass(slots=True)
class ServeBatchConfig(Section):
    rows: Annotated[int, Meta(ge=1, le=1 << 16)] = REQUIRED
    wait_ms: Annotated[float, Meta(ge=0, le=10_000)] = REQUIRED


@dataclass(slots=True)
class ServeLimitsConfig(Section):
    rows: Annotated[int, Meta(ge=1, le=1 << 16)] = REQUIRED
    body_kib: Annotated[int, Meta(ge=1, le=1 << 20)] = REQUIRED
    queued_rows: Count = REQUIRED
    connections: Count = REQUIRED
    seconds: Annotated[float, Meta(ge=0.001, le=86_400)] = REQUIRED


@dataclass(slots=True)
class ServeConfig(Section):
    model: str = REQUIRED
    host: str = REQUIRED
    port: Annotated[int, Meta(ge=0, le=65535)] = REQUIRED
    batch: ServeBatchConfig = field(default_factory=ServeBatchConfig)
    limits: ServeLimitsConfig = field(default_factory=ServeLimitsConfig)
    grace_seconds: Annotated[float, Meta(ge=0, le=86_400)] = REQUIRED
    threads: Threads | None = None


@dataclass(slots=True)
class ReportConfig(Section):
    runs: list[str] = field(default_factory=list)
    output: Annotated[str, Meta(pattern=r"\.html$")] | None = None
    split: Literal["val", "test"] | None = None


@dataclass(slots=True)
class DoctorConfig(Section):
    timeout: Positive = REQUIRED


def with_runs(words: Sequence[str]) -> list[str]:
    """The words after ``dlrm-report``, with the run folders, which are typed without a key, joined into one ``runs=[…]``."""
    folders: list[str] = []
    rest: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        is_option = word.startswith("-") or (before in ("--cfg", "-c") and word in ("job", "schema"))
        is_key = "=" in word and not Path(word).is_dir()
        (rest if is_option or is_key else folders).append(word)
    if not folders:
        return rest
    names = ",".join(map(quoted, folders))
    return [*rest, f"runs=[{names}]"]
