"""dlrm-doctor's configuration. Values and their explanations are in conf/doctor.yaml."""

from dataclasses import dataclass

from dlrm_app.config.schema import REQUIRED, Section
from dlrm_app.config.values import Positive


@dataclass(slots=True)
class DoctorConfig(Section):
    timeout: Positive = REQUIRED
