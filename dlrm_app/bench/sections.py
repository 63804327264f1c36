"""The sections of dlrm-bench: measures the loader and training steps by part, each alone, and formats them as text."""

import itertools
import statistics
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch

from dlrm_app.distributed.collectives import all_reduce_sum
from dlrm_app.loader.batch import Batch
from dlrm_app.runs.events import PARTS, TITLES
from dlrm_app.table import Cell, share, text_table
from dlrm_app.text import fixed
from dlrm_app.training.loop import train_batches
from dlrm_app.training.state import TrainingRun

REPEATS = 5
NUM_BATCHES = 16
"""Batches kept in memory and used in turn when steps are measured without the loader."""
MAX_LOADED_ROWS = 4_000_000
"""The most rows that the loader reads: many, because the first batch waits for a row group of every lane."""


@dataclass(frozen=True)
class Line:
    """The time of one part in milliseconds: median and mean."""

    name: str
    ms: float
    mean: float


@dataclass(frozen=True)
class Section:
    """One measurement: ``all`` of it and its parts. ``rows``: the rows of one repetition, over all ranks."""

    name: str
    all: Line
    parts: tuple[Line, ...]
    rows: int

    @property
    def rows_per_second(self) -> float:
        """Rows a second from the mean time: batches are read several at a time, so a median would be wrong."""
        return 1000 * self.rows / self.all.mean

    def __str__(self) -> str:
        rows: list[list[str | Cell]] = [
            [line.name, fixed(line.ms, 2), share(line.ms / self.all.ms)]
            for line in (*self.parts, self.all)
            if line is self.all or line.ms >= 0.0005
        ]
        return f"{self.name}, {self.rows_per_second:,.0f} rows/s\n{text_table(['', 'ms', 'share'], rows)}"


def line(name: str, values: Sequence[float]) -> Line:
    """Summarises repeated timings (ms)."""
    return Line(name, statistics.median(values), statistics.fmean(values))


def measure_loader(run: TrainingRun) -> Section:
    """Measures reading an epoch of this rank's batches, or the first MAX_LOADED_ROWS rows, without training steps."""
    batch_size = run.config.trainer.global_batch_size
    batches = max(1, min(run.batches_per_epoch, MAX_LOADED_ROWS // batch_size))
    times = []
    for _ in range(1 + REPEATS):  # the first one compiles
        started = time.perf_counter()
        with train_batches(run) as loader:
            for _ in itertools.islice(loader, batches):
                pass
        times.append(1000 * (time.perf_counter() - started))
    return Section("loader alone", line("all", times[1:]), (), batches * batch_size)


def measure_model(run: TrainingRun, warm_up: int, steps: int) -> Section:
    """Measures steps on batches in memory, without a reader running."""
    batches: list[Batch] = []
    while len(batches) < NUM_BATCHES:  # a small dataset has fewer
        with train_batches(run) as loader:
            batches += itertools.islice(loader, NUM_BATCHES - len(batches))
    return _section("model alone", run, time_steps(run, itertools.cycle(batches), warm_up, steps))


def measure_whole(run: TrainingRun, warm_up: int, steps: int) -> Section:
    """Measures steps from disk, as in dlrm-train."""
    with closing(_epochs(run)) as epochs:
        return _section("whole step, from disk", run, time_steps(run, epochs, warm_up, steps))


def _epochs(run: TrainingRun) -> Generator[Batch, None, None]:
    while True:
        with train_batches(run) as loader:
            yield from loader


Times = list[tuple[float, dict[str, float]]]
"""(milliseconds, milliseconds by part) of each step; parts without time are left out."""


def _section(name: str, run: TrainingRun, times: Times) -> Section:
    lines = (line(TITLES[part], [parts.get(part, 0.0) for _, parts in times]) for part in PARTS)
    whole = line("all", [ms for ms, _ in times])
    return Section(name, whole, tuple(lines), run.config.trainer.global_batch_size)


def time_steps(run: TrainingRun, batches: Iterator[Batch], warm_up: int, steps: int) -> Times:
    """Times of ``steps`` steps after ``warm_up`` other steps, as means over ranks.

    Waits for the device and exchanges times between ranks only at the end: in training, too, a step is queued while the
    previous one is computed. Every rank must call it.
    """
    parts = run.instruments.parts
    stream, marks = parts.waiting(batches), []
    run.trainable.model.train()
    for _ in range(warm_up + steps):
        with parts.step():
            run.trainable.pipeline.progress(stream)
        marks += parts.take()
    run.trainable.pipeline.detach()
    times = [[*parts.seconds(of_step).values()] for of_step in marks[warm_up:]]
    seconds = torch.tensor(times, dtype=torch.float64, device=run.runtime.device)
    means = 1000 * all_reduce_sum(seconds) / run.runtime.world_size
    return [
        (sum(by_part), {part: ms for part, ms in zip(PARTS, by_part, strict=True) if ms})
        for by_part in means.tolist()
    ]
