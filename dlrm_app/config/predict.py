"""The configuration of dlrm-predict. Values and their explanations stand in conf/predict.yaml."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from dlrm_app.config.checks import batch_rows, one_of, threads_problems, within
from dlrm_app.config.evaluate import SPLITS

STANDARD_INPUT = "-"


@dataclass(slots=True)
class PredictDataConfig:
    path: str | None = None


@dataclass(slots=True)
class PredictRejectsConfig:
    max_fraction: float = MISSING


@dataclass(slots=True)
class PredictConfig:
    model: str = MISSING
    which: str = MISSING
    ema: bool = MISSING
    input: Any = None
    labels: bool | None = None
    data: PredictDataConfig = field(default_factory=PredictDataConfig)
    split: str = MISSING
    encoding: str | None = MISSING
    output: str = MISSING
    batch_size: int = MISSING
    unit_mib: int = MISSING
    rejects: PredictRejectsConfig = field(default_factory=PredictRejectsConfig)
    metrics: bool = MISSING
    threads: int | None = None

    def problems(self) -> list[str]:
        """What types cannot express and no data is needed to see; every problem, with what to do about it."""
        problems = [
            *one_of("which", self.which, ("newest", "best")),
            *one_of("split", self.split, SPLITS),
            *batch_rows("batch_size", self.batch_size),
            *within("unit_mib", self.unit_mib, 1, 256),
            *within("rejects.max_fraction", self.rejects.max_fraction, 0, 1),
            *threads_problems("threads", self.threads),
        ]
        if (self.input is None) == (self.data.path is None):
            problems.append(
                "what is to be scored? give either input=FILES, raw logs, or data.path=DATASET with split="
            )
        if isinstance(self.input, list) and STANDARD_INPUT in self.input:
            problems.append("input=- is standard input, alone: give files, or pipe them all through cat")
        if self.data.path is not None:
            problems += [
                f"{key} is for raw logs (input=), the dataset at data.path has its own: leave it out"
                for key in ("encoding", "labels")
                if getattr(self, key) is not None
            ]
        if not self.output.endswith(".parquet"):
            problems.append(
                f"output is a Parquet file: give a name that ends in .parquet, got {self.output!r}"
            )
        return problems
