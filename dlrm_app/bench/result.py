"""The findings of dlrm-bench, as they stand in bench.json, and as text tables."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from dlrm_app.table import Cell, share, text_table
from dlrm_app.text import fixed, percent


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


def bench_text(result: BenchResult) -> str:
    """Tables under their names, the machine first."""
    blocks = ["\n".join(f"{name}: {value}" for name, value in result.machine.items())]
    for section in result.sections:
        speed = section.rows_per_second
        title = [section.name, f"{speed:,.0f} rows/s" if speed else "", section.note]
        headings = ["", "ms", "quartiles", "share", "least", "reached"]
        blocks.append(f"{', '.join(filter(None, title))}\n{text_table(headings, _rows(section))}")
    return "\n\n".join(blocks)


def _rows(section: Section) -> list[list[str | Cell]]:
    whole = section.all.ms
    return [
        [
            line.name,
            Cell(fixed(line.ms, 2), line.ms),
            f"{fixed(line.low, 2)} – {fixed(line.high, 2)}",
            share(line.ms / whole if whole else None),
            Cell(fixed(line.floor_ms, 2), line.floor_ms),
            Cell(percent(line.reached), line.reached),
        ]
        for line in (*section.parts, section.all)
        if line is section.all or line.ms >= 0.0005
    ]
