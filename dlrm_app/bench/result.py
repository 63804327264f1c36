"""The findings of dlrm-bench, as they stand in bench.json."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """Milliseconds of one part: median, quartiles, mean, and the least that this machine could take, if that is known."""

    name: str
    ms: float
    low: float
    high: float
    mean: float
    floor_ms: float | None = None

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
    rows: int
    note: str = ""

    @property
    def rows_per_second(self) -> float:
        """Rows of all repetitions by their time: batches are read several at a time, which no median shows."""
        return 1000 * self.rows / self.all.mean


@dataclass(frozen=True)
class BenchResult:
    """The machine in words, and the sections in the order of measuring."""

    machine: dict[str, str]
    sections: tuple[Section, ...]


def line(name: str, values: Sequence[float], floor_ms: float | None = None) -> Line:
    """Summarises repeated timings (ms)."""
    if len(values) < 2:
        return Line(name, values[0], values[0], values[0], values[0], floor_ms)
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Line(name, median, low, high, statistics.fmean(values), floor_ms)
