"""The sections of dlrm-bench: the loader, and training steps by part, each measured alone; and as text."""

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
"""Kept in memory and taken in turn, where steps are measured without the loader."""
LOADED = 4_000_000
"""Rows. The loader's first batch waits for a row group of every lane, which many rows must pay for."""


@dataclass(frozen=True)
class Line:
    """Milliseconds of one part: median and mean."""

    name: str
    ms: float
    mean: float


@dataclass(frozen=True)
class Section:
    """One thing that was measured, ``all`` of it and its parts; ``rows``: of a repetition, over all ranks."""

    name: str
    all: Line
    parts: tuple[Line, ...]
    rows: int

    @property
    def rows_per_second(self) -> float:
        """Rows of all repetitions by their time: batches are read several at a time, which no median shows."""
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
    """An epoch of this rank's batches, or the first LOADED rows; no steps meanwhile."""
    batch_size = run.config.trainer.global_batch_size
    batches = max(1, min(run.batches_per_epoch, LOADED // batch_size))
    times = []
    for _ in range(1 + REPEATS):  # the first one compiles
        started = time.perf_counter()
        with train_batches(run) as loader:
            for _ in itertools.islice(loader, batches):
                pass
        times.append(1000 * (time.perf_counter() - started))
    return Section("loader alone", line("all", times[1:]), (), batches * batch_size)


def measure_model(run: TrainingRun, warm_up: int, steps: int) -> Section:
    """Steps on batches in memory: no reader works beside them."""
    batches: list[Batch] = []
    while len(batches) < NUM_BATCHES:  # a small dataset has fewer
        with train_batches(run) as loader:
            batches += itertools.islice(loader, NUM_BATCHES - len(batches))
    return _section("model alone", run, time_steps(run, itertools.cycle(batches), warm_up, steps))


def measure_whole(run: TrainingRun, warm_up: int, steps: int) -> Section:
    """Steps as dlrm-train takes them, from disk."""
    with closing(_epochs(run)) as epochs:
        return _section("whole step, from disk", run, time_steps(run, epochs, warm_up, steps))


def _epochs(run: TrainingRun) -> Generator[Batch, None, None]:
    while True:
        with train_batches(run) as loader:
            yield from loader


Times = list[tuple[float, dict[str, float]]]
"""(milliseconds, those of each part that took any) of steps."""


def _section(name: str, run: TrainingRun, times: Times) -> Section:
    lines = (line(TITLES[part], [parts.get(part, 0.0) for _, parts in times]) for part in PARTS)
    whole = line("all", [ms for ms, _ in times])
    return Section(name, whole, tuple(lines), run.config.trainer.global_batch_size)


def time_steps(run: TrainingRun, batches: Iterator[Batch], warm_up: int, steps: int) -> Times:
    """Times of ``steps`` steps after ``warm_up`` others, means over ranks.

    The device is waited for, and ranks tell each other their times, at the end: in training a step is queued while the
    one before is computed, too. Every rank must call it.
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
