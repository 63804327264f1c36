"""dlrm-predict's configuration. Values and their explanations are in conf/predict.yaml."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from dlrm_app.config.schema import REQUIRED, DatasetPathConfig, RejectsConfig, Section
from dlrm_app.config.values import BatchRows, Split, Threads, Which, file_problems
from dlrm_app.errors import Problem

RESERVED = ("score", "label", "file", "line", "shard", "row")
"""Columns of dlrm-predict's output, beside those of other labels."""


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
    candidates: list[str] = field(default_factory=list)
    threads: Threads | None = None

    def rules(self) -> Iterator[Problem]:
        if (self.input is None) == (self.data.path is None):
            cure = "give either input=FILES, raw logs, or data.path=DATASET with split="
            yield Problem("input", "or data.path must name what to score", cure)
        yield from file_problems("input", self.input)
        yield from keep_problems(self.keep, RESERVED)
        if self.candidates and self.labels:
            yield Problem("labels", "are not read with candidates=, which have none", "leave it out", True)
        if twice := [name for name in dict.fromkeys(self.candidates) if self.candidates.count(name) > 1]:
            yield Problem("candidates", "names a column twice", "name each once", twice[0])

    def unread(self, key: str) -> str:
        """Settings of raw logs are not read for a dataset's rows, and ``split`` is not read for raw logs."""
        if self.data.path is None:
            return "is for a dataset (data.path=)" * (key == "split")
        of_logs = ("encoding", "keep", "candidates", "unit_mib", "rejects.max_fraction")
        return "is for raw logs (input=), the dataset at data.path has its own" * (key in of_logs)


def keep_problems(keep: Sequence[str], taken: Sequence[str]) -> list[Problem]:
    """A problem for each column of ``keep`` that has the name of a column of scores."""
    rule = "names a column that the scores have themselves, which it would replace"
    return [
        Problem("keep", rule, "rename it in the input, or leave it out", name)
        for name in taken
        if name in keep
    ]
