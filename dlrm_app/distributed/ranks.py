"""The ranks that were started, the device and the cores of each, as launcher and machine tell it: nothing here waits for torch.

Limits are read from Linux's own files, below ``root`` so that a test can lay out any machine.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dlrm_app.errors import ConfigError
from dlrm_app.machine import HIDDEN, Driver, cpu_limits, find_driver, installed


@dataclass(frozen=True)
class Ranks:
    """This process among the ranks, and the kind of device that each computes on, ``cpu`` or ``cuda``."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    device_type: str

    @property
    def is_first(self) -> bool:
        """True for the rank that prints and writes."""
        return self.rank == 0

    @property
    def gpu(self) -> int:
        """The number of its GPU among those that this process sees: 0 where each is shown its own alone."""
        import torch

        return 0 if torch.cuda.device_count() == 1 else self.local_rank


def num_started() -> int:
    """The number of ranks that torchrun has started; one without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def started_ranks(on_cpu: bool = False) -> Ranks:
    """This process's place, as torchrun gives it in the environment; without it, one rank. ``on_cpu``: GPUs are left alone.

    Raises ConfigError where there is an NVIDIA driver and no GPU that torch can use, unless the CPU was asked for, and
    where srun has started several processes without places.
    """
    tasks, world_size = os.environ.get("SLURM_STEP_NUM_TASKS", "1"), num_started()
    if tasks != "1" and "WORLD_SIZE" not in os.environ:
        raise ConfigError(
            [
                f"srun started {tasks} tasks (SLURM_STEP_NUM_TASKS), but WORLD_SIZE is not set, so each is a run of its own: start "
                "ranks with torchrun (scripts/slurm/train.sbatch); for separate runs with different outputs, set WORLD_SIZE=1"
            ]
        )
    return Ranks(
        rank=int(os.environ.get("RANK", "0")),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        world_size=world_size,
        local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", str(world_size))),
        device_type="cuda" if not on_cpu and has_gpu(find_driver()) else "cpu",
    )


def has_gpu(driver: Driver | None, root: Path = Path("/")) -> bool:
    """True if this machine's ranks compute on GPUs. The CPU is asked for by hiding the GPUs.

    Raises ConfigError where it was not, and torch can use none: days on a CPU are no answer to a broken driver, or to an
    image that was built where no GPU was seen.
    """
    if driver is None or os.environ.get("CUDA_VISIBLE_DEVICES") in HIDDEN:
        return False
    if installed("fbgemm-gpu-cpu"):
        if not any((root / "dev").glob("nvidia[0-9]*")):  # the driver alone, as on a cluster's login node
            return False
        cause = "fbgemm-gpu-cpu is installed, which is made for CPU: make setup DEVICE=cuda replaces it"
    else:
        import torch

        if torch.cuda.is_available():
            return True
        cause = f"torch sees no GPU: {driver.fault or _why_no_gpu()}. dlrm-doctor says what to do"
    cure = "to compute on the CPU, hide the GPUs: CUDA_VISIBLE_DEVICES="
    raise ConfigError([f"there is an NVIDIA driver ({driver}), but {cause}; {cure}"])


def visible_gpus() -> list[str]:
    """The GPUs that processes started from here may use, as CUDA_VISIBLE_DEVICES names them; none on CPU."""
    if not has_gpu(find_driver()):
        return []
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


def _why_no_gpu() -> str:
    import torch

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch has no types for it
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch is a build for CPU
        return str(error).splitlines()[0].rstrip(".")
    return "it does not say why"


CORES_PER_GPU = 2


def count_cores(allowed: frozenset[int], environment: Mapping[str, str], root: Path) -> int:
    """The cores that all ranks of this machine share: the affinity's, fewer if Slurm or the cgroup says so."""
    limits = [float(len(allowed)), *cpu_limits(root)]
    if environment.get("SLURM_CPUS_PER_TASK", "").isdigit():
        limits.append(float(environment["SLURM_CPUS_PER_TASK"]))
    return max(1, int(min(limits)))


def core_problems(ranks: Ranks, cores: int, environment: Mapping[str, str]) -> list[str]:
    """Too few of Slurm's cores for this machine's ranks with GPUs: one to queue its kernels, one to read, for each."""
    needed = CORES_PER_GPU * ranks.local_world_size
    if ranks.device_type != "cuda" or "SLURM_JOB_ID" not in environment or cores >= needed:
        return []
    return [
        f"{ranks.local_world_size} rank(s) with GPUs share {cores} core(s) of this machine: Slurm gives one unless it is asked "
        f"for more. Submit with --cpus-per-task={12 * ranks.local_world_size} (at least {needed}), which srun takes too"
    ]
