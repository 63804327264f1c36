"""Where the units of dlrm-preprocess are worked on when one machine is not enough: ``executor=dask``."""

from dataclasses import dataclass, field
from importlib.util import find_spec

from omegaconf import MISSING

from dlrm_app.config.checks import one_of, positive
from dlrm_app.config.extras import install_command

EXECUTORS = ("local", "dask")


@dataclass(slots=True)
class SlurmConfig:
    """Jobs that dask-jobqueue submits, each of them one worker; None leaves a choice to the Slurm cluster."""

    workers: int | None = None
    queue: str | None = None
    account: str | None = None
    cores: int = MISSING
    memory: str = MISSING
    walltime: str = MISSING


@dataclass(slots=True)
class DaskConfig:
    """A running scheduler's ``address``, or ``slurm.workers`` to start a cluster of its own."""

    address: str | None = None
    slurm: SlurmConfig = field(default_factory=SlurmConfig)

    def problems(self, executor: str) -> list[str]:
        """What cannot work with ``executor``, missing packages included, each with what to do about it."""
        given = {"address": self.address, "slurm.workers": self.slurm.workers}
        keys = [key for key, value in given.items() if value is not None]
        if executor != "dask":
            strays = [f"dask.{key} is for executor=dask: add that, or leave it out" for key in keys]
            return one_of("executor", executor, EXECUTORS) or strays
        problems = [*positive("dask.slurm.workers", self.slurm.workers), *self._missing_packages()]
        if len(keys) != 1:
            problems.append(
                f"executor=dask needs one cluster, got {'two' if keys else 'none'}: give either "
                "dask.address=tcp://HOST:8786 of a running scheduler, or dask.slurm.workers=N"
            )
        return [*problems, *positive("dask.slurm.cores", self.slurm.cores)]

    def _missing_packages(self) -> list[str]:
        needed = {"distributed": "executor=dask"}
        if self.slurm.workers is not None:
            needed["dask_jobqueue"] = "dask.slurm"
        return [
            f"{key} needs the package {name.replace('_', '-')}, which is not installed: {install_command('dask')}"
            for name, key in needed.items()
            if find_spec(name) is None
        ]
