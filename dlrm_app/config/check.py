"""The configuration of dlrm-check. Values and their explanations are in conf/check.yaml."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from dlrm_app.config.schema import REQUIRED, DatasetPathConfig, Section
from dlrm_app.config.values import Threads, file_problems
from dlrm_app.errors import Problem


@dataclass(slots=True)
class CheckConfig(Section):
    data: DatasetPathConfig = field(default_factory=DatasetPathConfig)
    input: Any = None
    output: Annotated[str, Meta(pattern=r"\.yaml$")] | None = None
    threads: Threads | None = None
    memory_gib: Annotated[float, Meta(ge=0.01, le=1 << 20)] = REQUIRED

    def rules(self) -> Iterator[Problem]:
        if (self.data.path is None) == (self.input is None):
            cure = "give either data.path=DATASET, or input=FILES, raw logs"
            yield Problem("data.path", "or input must name what to check", cure)
        yield from file_problems("input", self.input)
        if self.input is None:
            rule = "is for raw logs (input=), whose description is written there"
            yield from self.needless("output", rule=rule)
