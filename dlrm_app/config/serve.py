"""dlrm-serve's configuration. Values and their explanations are in conf/serve.yaml."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from dlrm_app.config.schema import REQUIRED, Section
from dlrm_app.config.values import Count, Threads
from dlrm_app.errors import Problem


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
class WatchConfig(Section):
    seconds: Annotated[float, Meta(ge=0.01, le=86_400)] | None = None


@dataclass(slots=True)
class ServeConfig(Section):
    model: str = REQUIRED
    name: str = REQUIRED
    watch: WatchConfig = field(default_factory=WatchConfig)
    host: str = REQUIRED
    port: Annotated[int, Meta(ge=0, le=65535)] = REQUIRED
    batch: ServeBatchConfig = field(default_factory=ServeBatchConfig)
    limits: ServeLimitsConfig = field(default_factory=ServeLimitsConfig)
    grace_seconds: Annotated[float, Meta(ge=0, le=86_400)] = REQUIRED
    workers: Annotated[int, Meta(ge=1, le=1024)] = REQUIRED
    threads: Threads | None = None

    def rules(self) -> Iterator[Problem]:
        if not re.fullmatch(r"[\w.-]+", self.name, re.ASCII):
            rule = "is a part of paths: it must be letters, digits, dots, - and _"
            yield Problem("name", rule, "such as name=dlrm", self.name)
