"""The loader and training steps by part, each measured alone."""

import itertools
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing

import pyarrow.parquet as pq
import torch

from dlrm_app.bench.result import Section, line
from dlrm_app.distributed.collectives import all_reduce_sum
from dlrm_app.loader.batch import Batch
from dlrm_app.runs.events import PARTS, TITLES
from dlrm_app.training.loop import train_batches
from dlrm_app.training.state import TrainingRun

REPEATS = 5
NUM_BATCHES = 16
"""Kept in memory and taken in turn, where steps are measured without the loader."""
LOADED = 4_000_000
"""Rows. The loader's first batch waits for a row group of every lane, which many rows must pay for."""


def measure_loader(run: TrainingRun) -> Section:
    """An epoch of this rank's batches, or the first LOADED rows; no steps meanwhile."""
    batches = max(1, min(run.batches_per_epoch, LOADED // run.config.trainer.global_batch_size))
    rows = batches * run.config.trainer.global_batch_size

    def load() -> None:
        with train_batches(run) as loader:
            for _ in itertools.islice(loader, batches):
                pass

    load()
    decode = decode_ms(run, rows)
    times = [timed(load) for _ in range(REPEATS)]
    note = "least: Parquet decoded by Arrow with every thread, no rows moved"
    return Section("loader alone", line("all", times, decode), (), rows, note)


def decode_ms(run: TrainingRun, rows: int) -> float:
    """Milliseconds in which Arrow alone decodes a rank's share of so many training rows."""
    manifest = run.manifest
    columns = [c.name for c in manifest.dense] + run.trainable.features + [str(manifest.label)]
    files = [pq.ParquetFile(manifest.folder / s.path) for s in manifest.splits["train"].shards]
    groups = [(file, index) for file in files for index in range(file.num_row_groups)]
    decoded, started = 0, time.perf_counter()
    for file, index in itertools.islice(groups, 64):
        decoded += file.read_row_group(index, columns=columns).num_rows
        if decoded >= rows:
            break
    seconds = time.perf_counter() - started
    return 1000 * seconds * rows / decoded / run.runtime.world_size


def measure_model(run: TrainingRun, floors: Mapping[str, float], warm_up: int, steps: int) -> Section:
    """Steps on batches in memory: no reader works beside them."""
    batches: list[Batch] = []
    while len(batches) < NUM_BATCHES:  # a small dataset has fewer
        with train_batches(run) as loader:
            batches += itertools.islice(loader, NUM_BATCHES - len(batches))
    return _measure_steps("model alone", run, itertools.cycle(batches), floors, warm_up, steps)


def measure_whole(run: TrainingRun, floors: Mapping[str, float], warm_up: int, steps: int) -> Section:
    """Steps as dlrm-train takes them, from disk."""
    with closing(_epochs(run)) as epochs:
        return _measure_steps("whole step, from disk", run, epochs, floors, warm_up, steps)


def _epochs(run: TrainingRun) -> Generator[Batch, None, None]:
    while True:
        with train_batches(run) as loader:
            yield from loader


def _measure_steps(
    name: str,
    run: TrainingRun,
    batches: Iterator[Batch],
    floors: Mapping[str, float],
    warm_up: int,
    steps: int,
) -> Section:
    times = time_steps(run, batches, warm_up, steps)
    lines = tuple(
        line(TITLES[part], [by_part.get(part, 0.0) for _, by_part in times], floors.get(part))
        for part in PARTS
    )
    whole = line("all", [ms for ms, _ in times], sum(floors.values()))
    return Section(name, whole, lines, run.config.trainer.global_batch_size)


def timed(work: Callable[[], object]) -> float:
    """Milliseconds."""
    started = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - started)


def time_steps(
    run: TrainingRun, batches: Iterator[Batch], warm_up: int, steps: int
) -> list[tuple[float, dict[str, float]]]:
    """(milliseconds, those of each part) of ``steps`` steps after ``warm_up`` others, means over ranks.

    The device is waited for, and ranks tell each other their times, at the end: in training a step is queued while the
    one before is computed, too. Every rank must call it.
    """
    parts = run.instruments.parts
    stream, marks = parts.waiting(batches), []
    run.trainable.model.train()
    for _ in range(warm_up + steps):
        with parts.step():
            run.trainable.pipeline.progress(stream)
        marks.append(parts.take())
    run.trainable.pipeline.detach()
    times = [[*parts.seconds(of_step).values()] for of_step in marks[warm_up:]]
    seconds = torch.tensor(times, dtype=torch.float64, device=run.runtime.device)
    means = 1000 * all_reduce_sum(seconds) / run.runtime.world_size
    return [
        (sum(by_part), {part: ms for part, ms in zip(PARTS, by_part, strict=True) if ms})
        for by_part in means.tolist()
    ]
