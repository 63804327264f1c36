"""dlrm-export's configuration. Values and their explanations are in conf/export.yaml."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from dlrm_app.config.schema import REQUIRED, DatasetPathConfig, Section, required
from dlrm_app.config.values import BatchRows, Count, NonNegative, Split, Threads, Which, value_problems
from dlrm_app.errors import Problem

Format = Literal["aoti", "torchscript", "triton", "parquet"]
TableType = Literal["fp32", "fp16", "int8", "int4", "int2"]


@dataclass(slots=True)
class ExportDataConfig(DatasetPathConfig):
    prefetch_batches: Count = REQUIRED


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
        return list(self.format) if isinstance(self.format, list) else [self.format]

    def rules(self) -> Iterator[Problem]:
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
        if "triton" in self.formats and (others := sorted({*kinds.values()} - {"fp32"})):
            rule = f"holds tables in fp32, not {others[0]}, because Triton has no fbgemm"
            yield Problem("format=triton", rule, "quantize in format=aoti or torchscript, in another export")

    def unread(self, key: str) -> str:
        """Settings of a full export are not read where a delta is applied."""
        is_read = not (self.base and self.apply) or key in ("base", "apply", "output", "threads")
        return "" if is_read else "is not read where a delta is applied"
