"""The configuration of dlrm-serve. Values and their explanations stand in conf/serve.yaml."""

from dataclasses import dataclass, field

from omegaconf import MISSING

from dlrm_app.config.checks import positive, threads_problems, within


@dataclass(slots=True)
class ServeBatchConfig:
    rows: int = MISSING
    wait_ms: float = MISSING


@dataclass(slots=True)
class ServeLimitsConfig:
    rows: int = MISSING
    body_kib: int = MISSING
    queued_rows: int = MISSING
    connections: int = MISSING
    seconds: float = MISSING


@dataclass(slots=True)
class ServeConfig:
    model: str = MISSING
    host: str = MISSING
    port: int = MISSING
    batch: ServeBatchConfig = field(default_factory=ServeBatchConfig)
    limits: ServeLimitsConfig = field(default_factory=ServeLimitsConfig)
    grace_seconds: float = MISSING
    threads: int | None = None

    def problems(self) -> list[str]:
        """What types cannot express; every problem, with what to do about it."""
        return [
            *within("port", self.port, 0, 65535),
            *within("batch.rows", self.batch.rows, 1, 1 << 16),
            *within("batch.wait_ms", self.batch.wait_ms, 0, 10_000),
            *within("limits.rows", self.limits.rows, 1, 1 << 16),
            *within("limits.body_kib", self.limits.body_kib, 1, 1 << 20),
            *positive("limits.queued_rows", self.limits.queued_rows),
            *positive("limits.connections", self.limits.connections),
            *within("limits.seconds", self.limits.seconds, 0.001, 86_400),
            *within("grace_seconds", self.grace_seconds, 0, 86_400),
            *threads_problems("threads", self.threads),
        ]
