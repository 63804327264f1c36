"""The findings of dlrm-bench as they stand in bench.json, and the start of the process as the first of them. No torch."""

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_STARTED = 19
"""Field of /proc/self/stat, behind the program's name: when the process started, in ticks since the machine did (proc(5))."""


@dataclass(frozen=True)
class Line:
    """Milliseconds of one part: median, quartiles, mean, and the least that this machine could take, if that is known."""

    name: str
    ms: float
    low: float
    high: float
    mean: float
    floor_ms: float | None = None
    what: str = ""

    @property
    def reached(self) -> float | None:
        """The floor's share of the time: 1 is as fast as the machine."""
        return None if self.floor_ms is None or not self.ms else self.floor_ms / self.ms


@dataclass(frozen=True)
class Section:
    """One thing that was measured, ``all`` of it and its parts; ``rows``: of a repetition, over all ranks."""

    name: str
    all: Line
    parts: tuple[Line, ...]
    rows: int | None
    note: str = ""

    @property
    def rows_per_second(self) -> float | None:
        """Rows of all repetitions by their time: batches are read several at a time, which no median shows."""
        return None if self.rows is None else 1000 * self.rows / self.all.mean


@dataclass(frozen=True)
class BenchResult:
    """What ``machine`` the figures are of, in words, and the sections in the order of measuring."""

    machine: dict[str, str]
    sections: tuple[Section, ...]


def line(name: str, values: Sequence[float], floor_ms: float | None = None, what: str = "") -> Line:
    """Summarises repeated timings (ms)."""
    if len(values) < 2:
        return Line(name, values[0], values[0], values[0], values[0], floor_ms, what)
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Line(name, median, low, high, statistics.fmean(values), floor_ms, what)


class Start:
    """Times the way from the start of the process to the end of its first step, part by part."""

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
        whole = line("all", [sum(self._ms.values())])
        return Section("start", whole, parts, None, "to the end of the first step, once")


def _age() -> float:
    """Seconds since this process was started; 0 where the system does not tell as Linux does."""
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return 0.0
    ticks = int(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[_STARTED])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
