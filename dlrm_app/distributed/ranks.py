"""The ranks that were started, with their device and cores, from the launcher and the machine.

torch is imported only if needed.

Limits are read from Linux's own files, below ``root``, so that a test can imitate any machine.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dlrm_app.errors import ConfigError, Problem, first_line, refuse_if
from dlrm_app.machine import HIDDEN, Driver, cpu_limits, find_driver, installed


@dataclass(frozen=True)
class Ranks:
    """This process's place among the ranks, and the device type that all of them use, ``cpu`` or ``cuda``."""

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
        """The number of this rank's GPU among those that the process sees; 0 if it sees only one."""
        import torch

        return 0 if torch.cuda.device_count() == 1 else self.local_rank


def num_started() -> int:
    """The number of ranks that torchrun has started; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def started_ranks(on_cpu: bool = False) -> Ranks:
    """This process's place: in its process group, else by torchrun's environment variables, else one rank.

    In a process group that was made without torchrun, all ranks are taken to be on this machine, unless LOCAL_RANK and
    LOCAL_WORLD_SIZE say otherwise. ``on_cpu``: GPUs are not used.

    Raises ConfigError if there is an NVIDIA driver but no GPU that torch can use (unless the CPU was asked for), and
    if srun has started several processes without these variables.
    """
    tasks, world_size = os.environ.get("SLURM_STEP_NUM_TASKS", "1"), num_started()
    rank, joined = int(os.environ.get("RANK", "0")), sys.modules.get("torch.distributed")
    if joined is not None and joined.is_available() and joined.is_initialized():
        rank, world_size = joined.get_rank(), joined.get_world_size()
    elif tasks != "1" and "WORLD_SIZE" not in os.environ:
        raise ConfigError(
            Problem(
                "srun",
                f"started {tasks} tasks (SLURM_STEP_NUM_TASKS), but WORLD_SIZE is not set, so each would "
                "be a separate run",
                "start ranks with torchrun (scripts/slurm/train.sbatch); for separate runs with "
                "different outputs, set WORLD_SIZE=1",
            )
        )
    return Ranks(
        rank=rank,
        local_rank=int(os.environ.get("LOCAL_RANK", str(rank) if "RANK" not in os.environ else "0")),
        world_size=world_size,
        local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", str(world_size))),
        device_type="cuda" if not on_cpu and has_gpu(find_driver()) else "cpu",
    )


def task_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """torchrun's variables for a task of ``srun``; empty if another launcher gave them, or if there is one task."""
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks == "1" or "WORLD_SIZE" in environment:
        return {}
    return {"RANK": environment.get("SLURM_PROCID", "0"), "WORLD_SIZE": tasks}


def sharing_ranks(ranks: int | None, environment: Mapping[str, str]) -> Ranks:
    """This process's place among ranks that share work through files, without a process group.

    They are started by torchrun, by srun, or as a Kubernetes Indexed Job with ``ranks`` completions, which has no
    variable for their number. Raises ConfigError if ``ranks`` differs from the number of the launcher.
    """
    given = {**environment, **task_variables(environment)}
    key = "WORLD_SIZE" if "WORLD_SIZE" in environment else "SLURM_STEP_NUM_TASKS"
    index = int(given.get("JOB_COMPLETION_INDEX", "0"))
    rank, world_size = int(given.get("RANK", "0")), int(given.get("WORLD_SIZE", "1"))
    if "WORLD_SIZE" not in given and "JOB_COMPLETION_INDEX" in given:
        refuse_if(_index_problems(ranks, index))
        rank, world_size = (0, 1) if ranks == 1 else (index, ranks or 1)
    elif "WORLD_SIZE" not in given and ranks not in (None, 1):
        cure = "start this many with torchrun or srun, or as an Indexed Job with as many completions; or leave it out"
        refuse_if([Problem("ranks", "needs a launcher that starts this many processes", cure, ranks)])
    elif ranks not in (None, world_size):
        rule = f"must be the number of ranks that were started ({key}={world_size})"
        refuse_if([Problem("ranks", rule, "leave it out: it is for Indexed Jobs of Kubernetes", ranks)])
    return Ranks(rank, 0, world_size, int(given.get("LOCAL_WORLD_SIZE", "1")), "cpu")


def _index_problems(ranks: int | None, index: int) -> list[Problem]:
    """Problems of a pod of an Indexed Job that is one of ``ranks``."""
    key = f"JOB_COMPLETION_INDEX={index}"
    if ranks is None:
        cure = (
            "give ranks=N, the Job's completions, to share the work; ranks=1 for pods that work by themselves"
        )
        return [Problem(key, "says that this is one pod of several, and ranks is not given", cure)]
    if 1 < ranks <= index:
        return [Problem(key, f"must be less than ranks={ranks}", "give the Job's completions as ranks")]
    return []


def has_gpu(driver: Driver | None, root: Path = Path("/")) -> bool:
    """True if this machine's ranks compute on GPUs. Hiding the GPUs asks for the CPU.

    Raises ConfigError if GPUs are not hidden but torch can use none: with a broken driver, or an image that was built
    without a GPU, a run would silently take days on the CPU.
    """
    if driver is None or os.environ.get("CUDA_VISIBLE_DEVICES") in HIDDEN:
        return False
    if installed("fbgemm-gpu-cpu"):
        if not any((root / "dev").glob("nvidia[0-9]*")):  # only the driver, as on a cluster's login node
            return False
        cause = "fbgemm-gpu-cpu is installed, which is for CPU only: make setup DEVICE=cuda replaces it"
    else:
        import torch

        if torch.cuda.is_available():
            return True
        cause = f"torch sees no GPU: {driver.fault or _why_no_gpu()}. dlrm-doctor says what to do"
    cure = "to compute on the CPU, hide the GPUs: CUDA_VISIBLE_DEVICES="
    rule = f"of the NVIDIA driver {driver} cannot be used, because {cause}"
    raise ConfigError(Problem("the GPU", rule, cure))


def visible_gpus() -> list[str]:
    """The GPUs that processes started from here may use, in CUDA_VISIBLE_DEVICES' terms; empty on CPU."""
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
        return first_line(error).rstrip(".")
    return "it gives no reason"


CORES_PER_GPU = 2


def count_cores(allowed: frozenset[int], environment: Mapping[str, str], root: Path) -> int:
    """The cores that all ranks of this machine share: the affinity's, or fewer by Slurm or the cgroup."""
    limits = [float(len(allowed)), *cpu_limits(root)]
    if environment.get("SLURM_CPUS_PER_TASK", "").isdigit():
        limits.append(float(environment["SLURM_CPUS_PER_TASK"]))
    return max(1, int(min(limits)))


def core_problems(ranks: Ranks, cores: int, environment: Mapping[str, str]) -> list[Problem]:
    """Problems: too few cores from Slurm. Each rank with a GPU needs one to launch kernels and one to read data."""
    needed = CORES_PER_GPU * ranks.local_world_size
    if ranks.device_type != "cuda" or "SLURM_JOB_ID" not in environment or cores >= needed:
        return []
    rule = (
        f"gives {cores} core(s) of this machine to {ranks.local_world_size} rank(s) with GPUs, "
        "because Slurm gives one unless it is asked for more"
    )
    cure = (
        f"submit with --cpus-per-task={12 * ranks.local_world_size} (at least {needed}), which srun takes too"
    )
    return [Problem("--cpus-per-task", rule, cure)]
