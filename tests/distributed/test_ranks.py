"""What a rank computes on: a driver without a usable GPU is refused, unless the CPU was asked for."""

import os
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.distributed import ranks
from dlrm_app.distributed.ranks import (
    Binding,
    Ranks,
    bind,
    core_problems,
    count_cores,
    has_gpu,
    keep_to,
    node_of_pci,
    parse_cores,
    read_nodes,
    started_ranks,
    visible_gpus,
)
from dlrm_app.errors import ConfigError
from dlrm_app.machine import Driver

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


def test_a_driver_without_a_device_is_refused_with_what_torch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, "No CUDA GPUs are available")
    with pytest.raises(ConfigError, match="torch sees no GPU: No CUDA GPUs are available"):
        has_gpu(NEW)


def test_a_torch_for_cpu_under_an_fbgemm_for_gpus_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the finding has it: an index with 2.13.0+cpu."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="there is an NVIDIA driver"):
        has_gpu(NEW)


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_ask_for_the_cpu(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert not has_gpu(OLD)


def test_wheels_for_cpu_beside_a_gpu_are_refused_unless_it_is_hidden(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in an image that was built where no GPU was seen; a machine with the driver alone has nothing else."""
    monkeypatch.setattr(ranks, "installed", lambda name: "1.8.0")
    assert not has_gpu(NEW, tmp_path)
    write(tmp_path / "dev/nvidiactl", "")
    assert not has_gpu(NEW, tmp_path)
    write(tmp_path / "dev/nvidia0", "")
    with pytest.raises(ConfigError, match="fbgemm-gpu-cpu is installed") as refusal:
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
def test_tasks_of_srun_that_are_no_ranks_are_refused(
    environment: dict[str, str], is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_STEP_NUM_TASKS", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ranks, "find_driver", lambda: None)
    with pytest.raises(ConfigError, match="torchrun") if is_refused else nullcontext():
        started_ranks()


@pytest.mark.parametrize(
    ("named", "seen"), [(None, ["0", "1", "2"]), ("3,GPU-5a", ["3", "GPU-5a"]), ("", []), ("-1", [])]
)
def test_gpus_are_told_as_processes_started_from_here_name_them(
    named: str | None, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "find_driver", lambda: NEW)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus() == seen


def lay_out(root: Path, nodes: dict[int, str], gpus: dict[str, int] | None = None) -> Path:
    """The files of a machine with these cores on each NUMA node, and these GPUs at nodes."""
    for node, cores in nodes.items():
        write(root / f"sys/devices/system/node/node{node}/cpulist", cores)
    for address, node in (gpus or {}).items():
        write(root / f"sys/bus/pci/devices/{address}/numa_node", str(node))
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def bind_all(
    root: Path, num_ranks: int, gpus: list[str], allowed: frozenset[int], **given: str
) -> list[Binding]:
    return [
        bind(rank, num_ranks, gpus, wanted=True, allowed=allowed, environment=given, root=root)
        for rank in range(num_ranks)
    ]


@given(st.frozensets(st.integers(0, 300)))
def test_cores_are_read_as_linux_writes_them(cores: frozenset[int]) -> None:
    """Any set, written as single numbers, and the ranges that Linux prints."""
    assert parse_cores(",".join(map(str, sorted(cores))) + "\n") == cores


def test_ranges_of_cores_are_read() -> None:
    assert parse_cores("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert parse_cores("\n") == frozenset()


def test_a_node_of_memory_alone_is_no_place_for_a_rank(tmp_path: Path) -> None:
    lay_out(tmp_path, {0: "0-3", 1: "4-7", 2: ""})
    assert read_nodes(tmp_path) == {0: frozenset(range(4)), 1: frozenset(range(4, 8))}


@given(cores=st.integers(1, 256), ranks=st.integers(1, 16), nodes=st.sampled_from([1, 2, 4, 8]))
def test_on_cpu_no_two_nodes_of_cores_overlap_and_threads_never_outnumber_cores(
    tmp_path_factory: pytest.TempPathFactory, cores: int, ranks: int, nodes: int
) -> None:
    """Every rank has a thread; beyond that the threads fit the machine, and those of a node the node."""
    cores = nodes * -(-cores // nodes)
    size = cores // nodes
    root = tmp_path_factory.mktemp("machine")
    lay_out(root, {node: f"{node * size}-{(node + 1) * size - 1}" for node in range(nodes)})
    found = bind_all(root, ranks, [], frozenset(range(cores)))
    assert sum(each.num_threads for each in found) <= max(cores, ranks)
    assert all(each.num_threads >= 1 for each in found)
    bound = [each for each in found if each.cores is not None]
    assert len(bound) == (ranks if 1 < nodes <= ranks else 0)
    for each in bound:
        sharing = [other for other in bound if other.cores == each.cores]
        assert sum(other.num_threads for other in sharing) <= max(size, len(sharing))
    assert frozenset().union(*(each.cores or () for each in bound)) in (frozenset(), frozenset(range(cores)))


def test_each_rank_keeps_to_the_node_of_its_gpu(tmp_path: Path) -> None:
    """A server of two sockets whose GPUs 0 and 3 are at the second: what the local rank's GPU says counts."""
    gpus = ["0000:1b:00.0", "0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0"]
    lay_out(tmp_path, {0: "0-15,32-47", 1: "16-31,48-63"}, dict(zip(gpus, [1, 0, 0, 1], strict=True)))
    found = bind_all(tmp_path, 4, gpus, frozenset(range(64)))
    second = parse_cores("16-31,48-63")
    assert [each.cores == second for each in found] == [True, False, False, True]
    assert {each.num_threads for each in found} == {16}
    assert found[0].why == "64 cores, bound to NUMA nodes 1 0 0 1"


def test_gpus_crowded_on_a_node_share_its_cores(tmp_path: Path) -> None:
    gpus = ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:81:00.0"]
    lay_out(tmp_path, {0: "0-11", 1: "12-23"}, dict(zip(gpus, [0, 0, 0, 1], strict=True)))
    assert [each.num_threads for each in bind_all(tmp_path, 4, gpus, frozenset(range(24)))] == [4, 4, 4, 6]


def test_a_job_with_some_of_the_cores_binds_its_ranks_to_those_near_their_gpus(tmp_path: Path) -> None:
    """Slurm's --cpus-per-task=96 of 128 cores; a lone rank on a machine of two sockets."""
    gpus = ["0000:01:00.0", "0000:81:00.0"]
    lay_out(tmp_path, {0: "0-63", 1: "64-127"}, dict(zip(gpus, [0, 1], strict=True)))
    allowed = frozenset(range(96))
    found = bind_all(tmp_path, 2, gpus, allowed, SLURM_CPUS_PER_TASK="96")
    assert [each.cores for each in found] == [frozenset(range(64)), frozenset(range(64, 96))]
    assert [each.num_threads for each in found] == [48, 32]
    (alone,) = bind_all(tmp_path, 1, gpus[1:], frozenset(range(128)))
    assert alone == Binding(64, frozenset(range(64, 128)), "128 cores, bound to NUMA nodes 1")


@given(
    allowed=st.frozensets(st.integers(0, 15), min_size=1),
    places=st.lists(st.integers(0, 3), min_size=1, max_size=8),
)
def test_a_rank_with_a_gpu_is_bound_to_allowed_cores_of_its_node_and_has_two_of_them(
    tmp_path_factory: pytest.TempPathFactory, allowed: frozenset[int], places: list[int]
) -> None:
    nodes = {node: frozenset(range(4 * node, 4 * node + 4)) for node in range(4)}
    gpus = [f"0000:{number:02x}:00.0" for number in range(len(places))]
    root = tmp_path_factory.mktemp("machine")
    lay_out(
        root,
        {node: f"{min(cores)}-{max(cores)}" for node, cores in nodes.items()},
        dict(zip(gpus, places, strict=True)),
    )
    found = bind_all(root, len(places), gpus, allowed)
    has_two = all(len(nodes[node] & allowed) >= 2 * places.count(node) for node in places)
    assert [each.cores for each in found] == [nodes[node] & allowed if has_two else None for node in places]


@pytest.mark.parametrize(
    ("num_ranks", "gpus", "allowed", "wanted", "why"),
    [
        (2, [], range(8), False, "trainer.numa=false"),
        (2, [], range(4), True, "the launcher has chosen the cores"),
        (1, [], range(8), True, "1 rank(s) would leave some of the 2 idle"),
        (2, ["0000:01:00.0", "0000:02:00.0"], range(1, 8), True, "some rank would keep fewer than 2 cores"),
        (2, ["0000:01:00.0", "0000:99:00.0"], range(8), True, "does not say where its GPUs are"),
    ],
    ids=["not wanted", "narrowed", "one rank", "too few cores at the node", "a GPU of unknown place"],
)
def test_nobody_is_bound_where_that_is_not_safe(
    tmp_path: Path, num_ranks: int, gpus: list[str], allowed: range, wanted: bool, why: str
) -> None:
    lay_out(tmp_path, {0: "0-3", 1: "4-7"}, {"0000:01:00.0": 0, "0000:02:00.0": 0, "0000:99:00.0": -1})
    for rank in range(num_ranks):
        found = bind(
            rank, num_ranks, gpus, wanted=wanted, allowed=frozenset(allowed), environment={}, root=tmp_path
        )
        assert found.cores is None
        assert why in found.why


def test_a_machine_that_tells_nothing_is_one_node(tmp_path: Path) -> None:
    """A container without sysfs: the cores of the affinity are shared, nobody is bound."""
    assert (
        bind_all(tmp_path, 2, ["0000:01:00.0"], frozenset(range(6)))
        == [Binding(3, None, "6 cores, one NUMA node")] * 2
    )
    assert node_of_pci(tmp_path, "0000:01:00.0") is None


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


def test_all_threads_of_the_process_are_bound() -> None:
    before = frozenset(os.sched_getaffinity(0))
    one = frozenset([min(before)])
    try:
        keep_to(one)
        tasks = [int(task.name) for task in Path("/proc/self/task").iterdir()]
        assert {frozenset(os.sched_getaffinity(task)) for task in tasks} == {one}
    finally:
        keep_to(before)


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
    assert all("--cpus-per-task=96" in problem for problem in problems)
