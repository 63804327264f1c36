"""The ranks that were started, the device and the cores of each, as launcher and machine tell it: nothing here waits for torch.

Cores are read from Linux's own files (sysfs, procfs, cgroups), below ``root`` so that a test can lay out any machine.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlrm_app.errors import ConfigError
from dlrm_app.machine import HIDDEN, Driver, cpu_limits, find_driver, installed, read_text


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


@dataclass(frozen=True)
class Binding:
    """Threads and cores of one rank of a machine, and why."""

    num_threads: int
    cores: frozenset[int] | None
    """The cores to keep to; None to leave that to the launcher and the kernel."""
    why: str


def parse_cores(text: str) -> frozenset[int]:
    """The numbers in Linux's notation: ``0-3,8`` is 0, 1, 2, 3 and 8."""
    spans = [part.partition("-") for part in text.strip().split(",") if part]
    return frozenset(core for first, _, last in spans for core in range(int(first), int(last or first) + 1))


def read_nodes(root: Path) -> dict[int, frozenset[int]]:
    """The cores of each NUMA node that has any; empty where the kernel knows of no nodes."""
    folders = (root / "sys/devices/system/node").glob("node[0-9]*")
    nodes = {int(folder.name[4:]): parse_cores(read_text(folder / "cpulist")) for folder in folders}
    return {node: nodes[node] for node in sorted(nodes) if nodes[node]}


def node_of_pci(root: Path, address: str) -> int | None:
    """The NUMA node of a PCI device like 0000:1b:00.0; None where the machine does not say (it says -1)."""
    text = read_text(root / "sys/bus/pci/devices" / address / "numa_node")
    return int(text) if text and int(text) >= 0 else None


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


def bind(
    local_rank: int,
    local_world_size: int,
    gpus: Sequence[str],
    *,
    wanted: bool,
    allowed: frozenset[int],
    environment: Mapping[str, str],
    root: Path = Path("/"),
) -> Binding:
    """The threads and cores of one rank. ``gpus``: the PCI address of each local rank's, or none on CPU.

    A rank with a GPU is bound to the allowed cores of its GPU's node, where that leaves each rank two. Ranks on CPU are
    bound only where that costs nobody a core: every node gets a rank, and nobody else (taskset, Slurm, Kubernetes,
    torchrun --numa-binding) has narrowed the affinity.
    """
    cores = count_cores(allowed, environment, root)
    share = max(1, cores // local_world_size)
    nodes = read_nodes(root)
    rank_nodes = _node_of_ranks(local_world_size, list(nodes), [node_of_pci(root, gpu) for gpu in gpus])
    if not wanted:
        why = "not bound to NUMA nodes (trainer.numa=false)"
    elif len(nodes) < 2:
        why = "one NUMA node"
    elif not rank_nodes:
        why = "not bound to NUMA nodes: the machine does not say where its GPUs are"
    elif gpus and any(
        len(nodes[node] & allowed) < CORES_PER_GPU * rank_nodes.count(node) for node in rank_nodes
    ):
        why = f"not bound to NUMA nodes: some rank would keep fewer than {CORES_PER_GPU} cores"
    elif not gpus and allowed != frozenset().union(*nodes.values()):
        why = "not bound to NUMA nodes: the launcher has chosen the cores"
    elif not gpus and set(rank_nodes) != set(nodes):
        why = f"not bound to NUMA nodes: {local_world_size} rank(s) would leave some of the {len(nodes)} idle"
    else:
        node = rank_nodes[local_rank]
        own = nodes[node] & allowed
        share = max(1, min(share, len(own) // rank_nodes.count(node)))
        why = f"bound to NUMA nodes {' '.join(map(str, rank_nodes))}"
        return Binding(share, own, f"{cores} cores, {why}")
    return Binding(share, None, f"{cores} cores, {why}")


def _node_of_ranks(num_ranks: int, nodes: Sequence[int], gpu_nodes: Sequence[int | None]) -> list[int]:
    """The node of each local rank: its GPU's; on CPU equal blocks of ranks. Empty if a GPU's is not known."""
    if gpu_nodes:
        return [node for node in gpu_nodes if node is not None] if None not in gpu_nodes else []
    return [nodes[rank * len(nodes) // num_ranks] for rank in range(num_ranks)] if nodes else []


def keep_to(cores: frozenset[int]) -> None:
    """Binds all threads of this process, those that libraries have started on import too."""
    for task in Path("/proc/self/task").iterdir():
        try:
            os.sched_setaffinity(int(task.name), cores)
        except ProcessLookupError:  # it has ended meanwhile
            continue
