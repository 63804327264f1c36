"""From the start of the process to the end of its first step, part by part. It loads no torch."""

import os
import time
from pathlib import Path

from dlrm_app.bench.result import Section, line

_FIELD = 19
"""Of /proc/self/stat, behind the program's name: when the process was started, in ticks since the machine was (proc(5))."""


class Start:
    """Takes the time at moments on the way, which is the one that dlrm-train goes."""

    def __init__(self) -> None:
        self._before = time.perf_counter() - _age()
        self._ms: dict[str, float] = {}

    def mark(self, part: str) -> None:
        """Ends ``part``, which began where the part before it ended, the first one with the process."""
        now = time.perf_counter()
        self._ms[part] = 1000 * (now - self._before)
        self._before = now

    def section(self) -> Section:
        """All parts up to now."""
        parts = tuple(line(part, [ms]) for part, ms in self._ms.items())
        return Section(
            "start", line("all", [sum(self._ms.values())]), parts, None, "to the end of the first step, once"
        )


def _age() -> float:
    """Seconds since this process was started; 0 where the system does not tell as Linux does."""
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return 0.0
    ticks = int(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[_FIELD])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
