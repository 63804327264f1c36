"""The configuration of dlrm-gpu-check. Values and their explanations stand in conf/gpu-check.yaml."""

from dataclasses import dataclass
from pathlib import Path

from omegaconf import MISSING

from dlrm_app.config.checks import above_zero, one_of, positive
from dlrm_app.files import folder_problems


@dataclass(slots=True)
class GpuCheckConfig:
    device: str = MISSING
    ranks: int | None = None
    minutes: float = MISSING
    only: str = MISSING
    output: str = MISSING

    def problems(self) -> list[str]:
        """What cannot work, each with what to do about it."""
        return [
            *one_of("device", self.device, ("cuda", "cpu")),
            *positive("ranks", self.ranks),
            *above_zero("minutes", self.minutes),
            *folder_problems("output", Path(self.output)),
        ]
