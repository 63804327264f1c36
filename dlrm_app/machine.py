"""Finds out what this machine has and allows: limits of its control groups, its NVIDIA driver, kernels for its GPUs.

Files are read below ``root``, so that a test can imitate any machine. It needs only Python: scripts/setup.py imports it
before anything is installed.
"""

# setup.py is to refuse old Pythons with a message, not with a syntax error
from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

GIB = 2**30
UNLIMITED = 1 << 62
"""Limits from here on mean none: cgroup v1 writes the largest whole number of pages below 2^63 bytes for "no limit"."""


def cpu_limits(root: Path) -> list[float]:
    """Limits of CPU time, in cores; empty if there are none."""
    limits = []
    for group, is_v2 in _groups(root, "cpu"):
        if is_v2:
            quota, period = [*read_text(group / "cpu.max").split(), "max", ""][:2]
        else:
            quota, period = (
                read_text(group / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            )
        if quota.isdigit() and period.isdigit():
            limits.append(int(quota) / int(period))
    return limits


def memory_limits(root: Path) -> list[int]:
    """Limits of memory, in bytes; empty if there are none."""
    texts = [
        read_text(group / ("memory.max" if is_v2 else "memory.limit_in_bytes")).strip()
        for group, is_v2 in _groups(root, "memory")
    ]
    return [int(text) for text in texts if text.isdigit() and int(text) < UNLIMITED]


def machine_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that this machine's processes may use together: all of it, or a container's limit."""
    of_system = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([of_system, *memory_limits(root)])


def available_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that a process can take now: what the system calls available, or what a container has left."""
    lines = dict(line.split(":", 1) for line in read_text(root / "proc/meminfo").splitlines() if ":" in line)
    of_system = (
        int(lines["MemAvailable"].split()[0]) << 10 if "MemAvailable" in lines else machine_memory(root)
    )
    left = [of_system]
    for group, is_v2 in _groups(root, "memory"):
        names = (
            ("memory.max", "memory.current") if is_v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        )
        limit, used = (read_text(group / name).strip() for name in names)
        if limit.isdigit() and used.isdigit() and int(limit) < UNLIMITED:
            left.append(max(0, int(limit) - int(used)))
    return min(left)


def _groups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """(folder, True for cgroup v2) of each of this process's groups that ``controller`` limits, innermost first."""
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        group = Path(path.lstrip("/"))
        for each in (group, *group.parents):
            yield root / "sys/fs/cgroup" / controllers / each, not controllers


def read_text(path: Path) -> str:
    """A file's text; empty if this kernel or container has no such file."""
    try:
        return path.read_text()
    except OSError:
        return ""


def installed(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class Trio(NamedTuple):
    """Versions of the three packages that are built for each other; mixed ones fail with an undefined symbol."""

    torch: str
    fbgemm: str
    torchrec: str

    @property
    def name(self) -> str:
        """The value for TRIO=: 2.13 for torch 2.13.0."""
        return self.torch.rpartition(".")[0]


TRIOS = (Trio("2.14.1", "1.9.0", "1.9.2"), Trio("2.13.0", "1.8.0", "1.8.0"))
"""The trios that this project supports, the newest first (docs/versions.md)."""
OLD_TRIOS = (Trio("2.11.0", "1.6.0", "1.6.1"),)
"""Trios that run, with less, where no newer torch can be installed; `make setup` takes them only by name."""
RUNNABLE = (*TRIOS, *OLD_TRIOS)
PYTHONS = ((3, 10), (3, 14))
"""The oldest and the newest Python with wheels for them."""
PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
WHEELS_CUDA = (13, 0)
"""The CUDA version of PyPI's wheels of every trio (their libraries link libcudart.so.13)."""
OLDEST_DRIVERS = {(13, 0): 580, (12, 0): 525}
"""The first driver for each CUDA version (NVIDIA's CUDA 13.0 release notes, tables 2 and 3)."""


def has_old_torchrec() -> bool:
    """True if the installed torchrec is one of OLD_TRIOS'."""
    return installed("torchrec") in {trio.torchrec for trio in OLD_TRIOS}


HIDDEN = ("", "-1")
"""Values of CUDA_VISIBLE_DEVICES that ask for the CPU."""


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver.

    ``source``: where it was found.
    ``version``: such as 580.65.06.
    ``cuda``: the newest supported, such as (13, 0).
    """

    source: str
    version: str | None = None
    cuda: tuple[int, int] | None = None

    def __str__(self) -> str:
        parts = [self.version, f"CUDA up to {_dotted(self.cuda)}" if self.cuda else None, self.source]
        return ", ".join(part for part in parts if part)

    @property
    def fault(self) -> str | None:
        """The reason why the CUDA wheels do not run on it; None if they do, or if that is unknown."""
        cuda = needed_cuda()
        major = int(self.version.split(".")[0]) if self.version else None
        is_old = self.cuda < cuda if self.cuda else major is not None and major < OLDEST_DRIVERS[cuda]
        if not is_old:
            return None
        needed = f"CUDA {_dotted(cuda)}, a driver of at least {OLDEST_DRIVERS[cuda]}"
        return f"the NVIDIA driver ({self}) is too old; the CUDA wheels need {needed}"


def needed_cuda() -> tuple[int, int]:
    """The CUDA version that a driver must support: that of the installed fbgemm's build (such as
    1.8.0+cu126), or of PyPI's wheels.

    Builds for 12.x run on every driver for CUDA 12 (NVIDIA's minor version compatibility).
    """
    return (12, 0) if "+cu12" in (installed("fbgemm-gpu") or "") else WHEELS_CUDA


def find_driver(root: Path = Path("/")) -> Driver | None:
    """The NVIDIA driver; None if there is none."""
    cuda = library_cuda()
    if (root / "proc/driver/nvidia").is_dir():
        return Driver("/proc/driver/nvidia is there", kernel_version(root), cuda)
    return None if cuda is None else Driver("libcuda.so.1 can be loaded", None, cuda)


def kernel_version(root: Path = Path("/")) -> str | None:
    """The version of the loaded kernel module, from its own file; None if there is none."""
    match = re.search(
        r"Kernel Module\b.*?\s(\d+\.\d+(?:\.\d+)?)\s", read_text(root / "proc/driver/nvidia/version")
    )
    return match.group(1) if match else None


def library_cuda() -> tuple[int, int] | None:
    """The newest CUDA that the driver's library supports (cuDriverGetVersion); None if it cannot be loaded.

    A container may have a newer library than the machine's driver (NVIDIA's forward compatibility): the library counts.
    """
    number = ctypes.c_int(0)
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return number.value // 1000, number.value % 1000 // 10


def _dotted(version: tuple[int, int] | None) -> str:
    return ".".join(map(str, version or ()))


KERNELS = ((8, 0), (9, 0), (10, 0))
"""fbgemm-gpu 1.8.0's wheels hold code for sm_80, sm_90a and sm_100a, and no PTX; so 1.9.0's, presumably."""
ANY_MINOR = (8,)
"""Major versions whose code for x.0 also runs on x.1 to x.9 (CUDA C++ programming guide); not sm_90a, sm_100a."""


def has_kernels(capability: tuple[int, int]) -> bool:
    """True if fbgemm's wheels run on a GPU of this compute capability."""
    return capability in KERNELS or capability[0] in ANY_MINOR


def explain_missing(capability: tuple[int, int]) -> str:
    """The message about a GPU without kernels."""
    major, minor = capability
    return (
        f"compute capability {major}.{minor}: fbgemm-gpu's wheels have kernels for 8.x (A100, A10, L4, L40), "
        "9.0 (H100, H200) and 10.0 (B200) only"
    )


def num_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
