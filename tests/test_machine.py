"""Limits of control groups, NVIDIA drivers laid out as files and libraries, and the GPUs that have kernels."""

import ctypes
from pathlib import Path

import pytest

from dlrm_app import machine as module
from dlrm_app.machine import (
    Driver,
    cpu_limits,
    explain_missing,
    find_driver,
    has_kernels,
    kernel_version,
    library_cuda,
    memory_limits,
)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@pytest.mark.parametrize(
    ("group", "files", "limits"),
    [
        # cgroup v2 on a Slurm node: the limit is of the job, above the step's own group; the top has none
        (
            "0::/system.slice/slurmstepd.scope/job_7/step_0",
            {"system.slice/slurmstepd.scope/job_7/memory.max": "4096\n", "system.slice/memory.max": "max\n"},
            [4096],
        ),
        ("0::/", {"memory.max": "8192\n"}, [8192]),  # a container
        (
            "5:cpu,cpuacct:/a\n4:memory:/slurm/job_7",  # cgroup v1
            {"memory/slurm/job_7/memory.limit_in_bytes": "4096\n", "memory/memory.limit_in_bytes": "8192\n"},
            [4096, 8192],
        ),
        ("4:memory:/", {"memory/memory.limit_in_bytes": f"{2**63 - 4096}\n"}, []),  # v1 without a limit
        ("0::/user.slice", {}, []),
    ],
)
def test_the_memory_that_a_job_or_container_allows_is_found(
    group: str, files: dict[str, str], limits: list[int], tmp_path: Path
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(group + "\n")
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert memory_limits(tmp_path) == limits


def test_cpu_time_is_limited_by_any_group_above(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/pod/container")
    write(tmp_path / "sys/fs/cgroup/pod/container/cpu.max", "max 100000")
    write(tmp_path / "sys/fs/cgroup/pod/cpu.max", "250000 100000")
    assert cpu_limits(tmp_path) == [2.5]


def test_the_quota_of_cgroups_version_1_counts_too(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "7:memory:/x\n4:cpu,cpuacct:/x")
    for name, value in (("cpu.cfs_quota_us", "300000"), ("cpu.cfs_period_us", "100000")):
        write(tmp_path / "sys/fs/cgroup/cpu,cpuacct/x" / name, value)
    assert cpu_limits(tmp_path) == [3]
    write(tmp_path / "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "-1")
    assert cpu_limits(tmp_path) == []


PROPRIETARY = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024
GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)
"""
OPEN = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22-I3)  \
Sun Jul 27 07:06:36 UTC 2025
GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)
"""


class Library:
    """libcuda.so.1 that says which CUDA it runs."""

    def __init__(self, number: int, code: int = 0) -> None:
        self._number, self._code = number, code

    def cuDriverGetVersion(self, pointer: object) -> int:  # noqa: N802 - NVIDIA's name
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))[0] = self._number  # type: ignore[arg-type]
        return self._code


def lay_out(root: Path, text: str) -> Path:
    (root / "proc/driver/nvidia").mkdir(parents=True)
    (root / "proc/driver/nvidia/version").write_text(text)
    return root


def pretend(monkeypatch: pytest.MonkeyPatch, library: Library | None) -> None:
    def load(name: str) -> Library:
        if library is None:
            raise OSError(f"{name}: cannot open shared object file")
        return library

    monkeypatch.setattr(module.ctypes, "CDLL", load)


@pytest.mark.parametrize(("text", "version"), [(PROPRIETARY, "535.183.01"), (OPEN, "580.65.06"), ("?", None)])
def test_the_version_is_read_as_both_kernel_modules_write_it(
    tmp_path: Path, text: str, version: str | None
) -> None:
    assert kernel_version(lay_out(tmp_path, text)) == version


def test_a_driver_535_is_seen_and_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, Library(12020))
    driver = find_driver(lay_out(tmp_path, PROPRIETARY))
    assert driver is not None
    assert driver.cuda == (12, 2)
    assert driver.fault is not None
    assert "(535.183.01, CUDA up to 12.2, " in driver.fault
    assert "the CUDA wheels need CUDA 13.0" in driver.fault


@pytest.mark.parametrize(
    ("version", "cuda", "is_fit"),
    [
        ("580.65.06", (13, 0), True),
        ("590.10", (13, 1), True),
        ("535.183.01", (13, 0), True),  # a container with a newer library than the kernel's module
        ("575.57.08", (12, 9), False),
        ("575.57.08", None, False),
        ("580.65.06", None, True),
        (None, None, True),  # nothing is known: torch will tell
    ],
)
def test_the_drivers_cuda_counts_before_its_version(
    version: str | None, cuda: tuple[int, int] | None, is_fit: bool
) -> None:
    assert (Driver("seen", version, cuda).fault is None) == is_fit


@pytest.mark.parametrize(
    ("version", "cuda", "is_fit"),
    [
        ("550.54.15", (12, 4), True),
        ("570.86.10", None, True),
        ("525.60.13", None, True),
        ("470.5", (11, 4), False),
    ],
)
def test_builds_for_cuda_12_run_on_every_driver_of_cuda_12(
    version: str, cuda: tuple[int, int] | None, is_fit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Driver("seen", "550.54.15").fault is not None
    monkeypatch.setattr(module, "version", lambda name: "1.8.0+cu126")
    assert (Driver("seen", version, cuda).fault is None) == is_fit


def test_a_library_is_a_driver_only_if_it_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, Library(13000))
    assert str(find_driver(tmp_path)) == "CUDA up to 13.0, libcuda.so.1 can be loaded"
    pretend(monkeypatch, Library(0, code=3))
    assert (library_cuda(), find_driver(tmp_path)) == (None, None)
    pretend(monkeypatch, None)
    assert (library_cuda(), find_driver(tmp_path)) == (None, None)


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0)])
def test_ampere_ada_hopper_and_datacenter_blackwell_have_kernels(
    capability: tuple[int, int],
) -> None:
    assert has_kernels(capability)


@pytest.mark.parametrize("capability", [(7, 0), (7, 5), (10, 3), (12, 0), (12, 1)])
def test_v100_t4_b300_and_geforce_50_have_no_kernels(capability: tuple[int, int]) -> None:
    assert not has_kernels(capability)
    assert f"capability {capability[0]}.{capability[1]}:" in explain_missing(capability)
