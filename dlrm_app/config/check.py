"""The configuration of dlrm-check. Values and their explanations stand in conf/check.yaml."""

from dataclasses import dataclass, field

from omegaconf import MISSING

from dlrm_app.config.checks import threads_problems, within


@dataclass(slots=True)
class CheckedDataConfig:
    path: str = MISSING


@dataclass(slots=True)
class CheckConfig:
    data: CheckedDataConfig = field(default_factory=CheckedDataConfig)
    threads: int | None = None
    memory_gib: float = MISSING

    def problems(self) -> list[str]:
        """What types cannot express, each with what to do about it."""
        return [
            *threads_problems("threads", self.threads),
            *within("memory_gib", self.memory_gib, 0.01, 1 << 20),
        ]
