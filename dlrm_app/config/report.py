"""dlrm-report's configuration. Values and their explanations are in conf/report.yaml."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from dlrm_app.config.schema import Section


@dataclass(slots=True)
class ReportConfig(Section):
    runs: list[str] = field(default_factory=list)
    output: Annotated[str, Meta(pattern=r"\.html$")] | None = None
    split: Literal["val", "test"] | None = None
    importance: Annotated[str, Meta(pattern=r"\.json$")] | None = None
