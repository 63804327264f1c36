"""What a rank computes on: a driver without a usable GPU is refused, unless the CPU was asked for."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from dlrm_app.distributed import ranks
from dlrm_app.distributed.ranks import (
    Ranks,
    core_problems,
    count_cores,
    has_gpu,
    sharing_ranks,
    started_ranks,
    visible_gpus,
)
from dlrm_app.errors import ConfigError
from dlrm_app.machine import Driver
from tests.refusals import refused

OLD = Driver("/proc/driver/nvidia is there", "535.183.01", (12, 2))
NEW = Driver("/proc/driver/nvidia is there", "580.65.06", (13, 0))


@pytest.fixture(autouse=True)
def cuda_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed is made for GPUs, and none of them is hidden."""
    monkeypatch.setattr(ranks, "installed", lambda name: None if name == "fbgemm-gpu-cpu" else "1.8.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def say(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def fail() -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", fail)


def test_without_a_driver_it_is_the_cpu_and_with_a_gpu_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not has_gpu(None)
    assert has_gpu(NEW)


def test_a_driver_that_is_too_old_is_refused_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, "The NVIDIA driver on your system is too old (found version 12020).")
    monkeypatch.setattr(ranks, "find_driver", lambda: OLD)
    with pytest.raises(ConfigError) as refusal:
        started_ranks()
    for part in ("535.183.01", "at least 580", "dlrm-doctor", "CUDA_VISIBLE_DEVICES="):
        assert part in str(refusal.value)


def test_a_driver_without_a_device_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, "No CUDA GPUs are available")
    with refused(ConfigError, "the GPU", "...torch sees no GPU: No CUDA GPUs are available..."):
        has_gpu(NEW)


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_ask_for_the_cpu(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert not has_gpu(OLD)


def test_cpu_wheels_beside_a_visible_gpu_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in an image that was built where no GPU was seen; a machine with the driver alone has nothing else."""
    monkeypatch.setattr(ranks, "installed", lambda name: "1.8.0")
    assert not has_gpu(NEW, tmp_path)
    write(tmp_path / "dev/nvidiactl", "")
    assert not has_gpu(NEW, tmp_path)
    write(tmp_path / "dev/nvidia0", "")
    with refused(ConfigError, "the GPU", "...fbgemm-gpu-cpu is installed...") as refusal:
        has_gpu(NEW, tmp_path)
    for cure in ("make setup DEVICE=cuda", "CUDA_VISIBLE_DEVICES="):
        assert cure in str(refusal.value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not has_gpu(NEW, tmp_path)


@pytest.mark.parametrize(
    ("environment", "is_refused"),
    [
        ({"SLURM_STEP_NUM_TASKS": "8"}, True),
        (
            {"SLURM_STEP_NUM_TASKS": "8", "WORLD_SIZE": "1"},
            False,
        ),  # runs that have nothing to do with each other
        ({"SLURM_STEP_NUM_TASKS": "2", "WORLD_SIZE": "16"}, False),  # a torchrun on each node
        ({"SLURM_STEP_NUM_TASKS": "1"}, False),
        ({}, False),
    ],
)
def test_tasks_of_srun_without_ranks_are_refused(
    environment: dict[str, str], is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_STEP_NUM_TASKS", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ranks, "find_driver", lambda: None)
    with (
        refused(
            ConfigError,
            "srun",
            "started 8 tasks (SLURM_STEP_NUM_TASKS), but WORLD_SIZE is not set, so each would be...",
            cure="start ranks with torchrun (scripts/slurm/train.sbatch); for separate runs with...",
        )
        if is_refused
        else nullcontext()
    ):
        started_ranks()


TORCHRUN = {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
SRUN = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8"}
INDEXED = {"JOB_COMPLETION_INDEX": "3"}


@pytest.mark.parametrize(
    ("environment", "given", "place"),
    [
        ({}, None, (0, 1)),
        ({}, 1, (0, 1)),
        (TORCHRUN, None, (2, 4)),
        (TORCHRUN, 4, (2, 4)),
        (SRUN, None, (5, 8)),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None, (0, 1)),
        ({**SRUN, "WORLD_SIZE": "1"}, None, (0, 1)),  # runs that have nothing to do with each other
        (SRUN | TORCHRUN, None, (2, 4)),
        (INDEXED, 4, (3, 4)),
        (INDEXED, 1, (0, 1)),
        (INDEXED | TORCHRUN, None, (2, 4)),
    ],
)
def test_ranks_that_share_files_come_from_every_launcher(
    environment: dict[str, str], given: int | None, place: tuple[int, int]
) -> None:
    found = sharing_ranks(given, environment)
    assert (found.rank, found.world_size) == place


@pytest.mark.parametrize(
    ("environment", "given", "key", "rule"),
    [
        ({}, 4, "ranks", "needs a launcher that starts this many processes"),
        (TORCHRUN, 3, "ranks", "must be the number of ranks that were started (WORLD_SIZE=4)"),
        (SRUN, 4, "ranks", "must be the number of ranks that were started (SLURM_STEP_NUM_TASKS=8)"),
        (
            INDEXED,
            None,
            "JOB_COMPLETION_INDEX=3",
            "says that this is one pod of several, and ranks is not...",
        ),
        (INDEXED, 3, "JOB_COMPLETION_INDEX=3", "must be less than ranks=3"),
    ],
)
def test_another_number_of_ranks_is_refused(
    environment: dict[str, str], given: int | None, key: str, rule: str
) -> None:
    with refused(ConfigError, key, rule):
        sharing_ranks(given, environment)


@pytest.mark.parametrize(
    ("named", "seen"), [(None, ["0", "1", "2"]), ("3,GPU-5a", ["3", "GPU-5a"]), ("", []), ("-1", [])]
)
def test_gpus_are_reported_by_the_names_of_processes_started_here(
    named: str | None, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "find_driver", lambda: NEW)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus() == seen


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_slurm_and_cgroups_can_only_lessen_the_cores(tmp_path: Path) -> None:
    allowed = frozenset(range(16))
    assert count_cores(allowed, {}, tmp_path) == 16
    assert count_cores(allowed, {"SLURM_CPUS_PER_TASK": "4"}, tmp_path) == 4
    assert count_cores(allowed, {"SLURM_CPUS_PER_TASK": "64"}, tmp_path) == 16
    write(tmp_path / "proc/self/cgroup", "0::/pod/container")
    write(tmp_path / "sys/fs/cgroup/pod/container/cpu.max", "max 100000")
    write(tmp_path / "sys/fs/cgroup/pod/cpu.max", "250000 100000")
    assert count_cores(allowed, {}, tmp_path) == 2
    write(tmp_path / "sys/fs/cgroup/pod/cpu.max", "50000 100000")
    assert count_cores(allowed, {}, tmp_path) == 1


@pytest.mark.parametrize(
    ("device", "environment", "cores", "is_refused"),
    [
        ("cuda", {"SLURM_JOB_ID": "7"}, 1, True),  # Slurm's default
        ("cuda", {"SLURM_JOB_ID": "7"}, 15, True),
        ("cuda", {"SLURM_JOB_ID": "7"}, 16, False),
        ("cuda", {}, 1, False),  # a laptop's container: slow, and nobody to ask
        ("cpu", {"SLURM_JOB_ID": "7"}, 1, False),
    ],
)
def test_a_slurm_job_without_cores_for_its_gpus_is_refused(
    device: str, environment: dict[str, str], cores: int, is_refused: bool
) -> None:
    ranks = Ranks(rank=0, local_rank=0, world_size=8, local_world_size=8, device_type=device)
    problems = core_problems(ranks, cores, environment)
    assert bool(problems) == is_refused
    assert all("--cpus-per-task=96" in problem.cure for problem in problems)
