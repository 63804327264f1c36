"""The configuration of dlrm-doctor. Values and their explanations stand in conf/doctor.yaml."""

from dataclasses import dataclass

from dlrm_app.config.schema import REQUIRED, Positive, Section


@dataclass(slots=True)
class DoctorConfig(Section):
    timeout: Positive = REQUIRED
