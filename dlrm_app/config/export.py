"""The configuration of dlrm-export. Values and their explanations stand in conf/export.yaml."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from dlrm_app.config.checks import at_least_zero, batch_rows, one_of, positive, threads_problems
from dlrm_app.config.evaluate import SPLITS

FORMATS = ("aoti", "torchscript", "safetensors", "parquet")
PLAIN_FORMATS = ("safetensors", "parquet")
TABLE_TYPES = ("fp32", "fp16", "int8", "int4", "int2")
DENSE_TYPES = ("fp32", "bf16", "int8")
CPUS = ("native", "avx2", "avx512")


@dataclass(slots=True)
class ExportDataConfig:
    path: str | None = None
    prefetch_batches: int = MISSING


@dataclass(slots=True)
class ExportConfig:
    checkpoint: str = MISSING
    which: str = MISSING
    ema: bool = MISSING
    output: str = MISSING
    format: Any = MISSING
    quantize: str = MISSING
    quantize_tables: dict[str, str] = field(default_factory=dict)
    dense: str = MISSING
    cpu: str = MISSING
    shards: int = MISSING
    data: ExportDataConfig = field(default_factory=ExportDataConfig)
    split: str | None = None
    max_auc_loss: float = MISSING
    cpp_program: str | None = None
    batch_size: int = MISSING
    threads: int | None = None

    @property
    def formats(self) -> list[str]:
        """``format``, which may be one or a list."""
        return list(self.format) if isinstance(self.format, list) else [self.format]

    def problems(self) -> list[str]:
        """What types cannot express and no data is needed to see; every problem, with what to do about it."""
        problems = [
            *one_of("which", self.which, ("newest", "best")),
            *(problem for name in self.formats for problem in one_of("format", name, FORMATS)),
            *one_of("quantize", self.quantize, TABLE_TYPES),
            *one_of("dense", self.dense, DENSE_TYPES),
            *one_of("cpu", self.cpu, CPUS),
            *(one_of("split", self.split, SPLITS) if self.split is not None else []),
            *at_least_zero("max_auc_loss", self.max_auc_loss),
            *batch_rows("batch_size", self.batch_size),
            *positive("shards", self.shards),
            *positive("data.prefetch_batches", self.data.prefetch_batches),
            *threads_problems("threads", self.threads),
        ]
        for pattern, kind in self.quantize_tables.items():
            problems += one_of(f"quantize_tables.{pattern}", kind, TABLE_TYPES)
        if not self.formats or len(set(map(str, self.formats))) < len(self.formats):
            problems.append(f"format must name each file once, and at least one, got {self.format!r}")
        plain = [name for name in self.formats if name in PLAIN_FORMATS]
        integers = {
            kind for kind in (self.quantize, *self.quantize_tables.values()) if kind.startswith("int")
        }
        if self.cpp_program and "aoti" not in self.formats:
            problems.append(
                f"cpp_program={self.cpp_program} scores with model.pt2: give format=aoti, or leave it out"
            )
        if self.shards > 1:
            problems += self._shard_problems()
        if plain and integers:
            problems.append(
                f"format={plain[0]} holds plain weights, which are fp32 or fp16, not {sorted(integers)[0]}: "
                "quantize in format=aoti or torchscript"
            )
        if plain and self.dense != "fp32":
            problems.append(
                f"format={plain[0]} holds plain weights, whose dense part is fp32: leave dense={self.dense} out"
            )
        return problems

    def _shard_problems(self) -> list[str]:
        """What torchrec does not shard."""
        problems = []
        if others := [name for name in self.formats if name != "torchscript"]:
            problems.append(
                f"shards={self.shards} is of format=torchscript alone, not {others[0]}: give format=torchscript, or shards=1"
            )
        kinds = {"quantize": self.quantize}
        kinds |= {f"quantize_tables.{pattern}": kind for pattern, kind in self.quantize_tables.items()}
        problems += [
            f"shards={self.shards} wants tables of integers, {key} is {kind}: give int8, int4 or int2, or shards=1"
            for key, kind in kinds.items()
            if kind in TABLE_TYPES and not kind.startswith("int")
        ]
        return problems
