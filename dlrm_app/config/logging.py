"""The configuration of what shows how a run goes. Values and explanations stand in conf/train.yaml."""

from dataclasses import dataclass, field
from importlib.util import find_spec

from omegaconf import MISSING

from dlrm_app.config.extras import install_command


@dataclass(slots=True)
class MlperfConfig:
    org: str = "unknown"
    platform: str = "unknown"
    status: str = "research"


@dataclass(slots=True)
class LoggingConfig:
    tensorboard: bool = MISSING
    mlflow: str | None = None
    mllog: bool = False
    mlperf: MlperfConfig = field(default_factory=MlperfConfig)

    def problems(self) -> list[str]:
        """Packages that are missing, and an address that gives a secret away."""
        problems = [
            f"logging.{key} needs the package {key}, which is not installed: {install_command('watch')}"
            for key, is_wanted in (("tensorboard", self.tensorboard), ("mlflow", bool(self.mlflow)))
            if is_wanted and find_spec(key) is None
        ]
        if self.mllog:
            problems += [
                f"logging.mlperf.{key} must not be empty, for MLPerf's checker refuses that: leave it out for unknown"
                for key in ("org", "platform", "status")
                if not getattr(self.mlperf, key)
            ]
        if self.mlflow and "@" in self.mlflow:
            problems.append(
                "logging.mlflow holds a user name or password, which config.yaml would show: "
                "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead"
            )
        return problems


@dataclass(slots=True)
class ReportConfig:
    enabled: bool = MISSING
