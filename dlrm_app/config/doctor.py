"""The configuration of dlrm-doctor. Values and their explanations stand in conf/doctor.yaml."""

from dataclasses import dataclass

from omegaconf import MISSING


@dataclass(slots=True)
class DoctorConfig:
    timeout: float = MISSING

    def problems(self) -> list[str]:
        """What cannot work, each with what to do about it."""
        if self.timeout > 0:
            return []
        return [f"timeout={self.timeout:g}: each check needs some seconds, give a positive number"]
