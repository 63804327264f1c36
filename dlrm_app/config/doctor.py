"""The configuration of dlrm-doctor. Values and their explanations stand in conf/doctor.yaml."""

from dataclasses import dataclass

from omegaconf import MISSING

from dlrm_app.config.checks import above_zero


@dataclass(slots=True)
class DoctorConfig:
    timeout: float = MISSING

    def problems(self) -> list[str]:
        """What cannot work, each with what to do about it."""
        return above_zero("timeout", self.timeout)
