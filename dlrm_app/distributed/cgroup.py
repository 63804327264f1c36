"""What a container or a Slurm job allows this process: the limits of its Linux control group and of all above it.

Files are read below ``root``, so that a test can lay out any machine. Needs nothing but Python.
"""

from collections.abc import Iterator
from pathlib import Path

UNLIMITED = 1 << 62
"""cgroup v1 says "no limit" with the largest whole number of pages below 2^63 bytes."""


def cpu_limits(root: Path) -> list[float]:
    """Limits of CPU time, in cores; empty without any."""
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
    """Limits of memory, in bytes; empty without any."""
    texts = [
        read_text(group / ("memory.max" if is_v2 else "memory.limit_in_bytes")).strip()
        for group, is_v2 in _groups(root, "memory")
    ]
    return [int(text) for text in texts if text.isdigit() and int(text) < UNLIMITED]


def _groups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """(folder, whether it is of cgroup v2) of each of this process's groups that ``controller`` limits, inside out."""
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        group = Path(path.lstrip("/"))
        for each in (group, *group.parents):
            yield root / "sys/fs/cgroup" / controllers / each, not controllers


def read_text(path: Path) -> str:
    """A file's text; empty where this kernel or container has no such file."""
    try:
        return path.read_text()
    except OSError:
        return ""
