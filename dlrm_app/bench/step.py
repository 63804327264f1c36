"""Training steps and their parts, on batches in memory and from disk."""

import itertools
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing

from dlrm_app.bench.result import Section, line
from dlrm_app.loader.batch import Batch
from dlrm_app.training.instruments.parts import PARTS, TITLES
from dlrm_app.training.instruments.timed_steps import time_steps
from dlrm_app.training.run import TrainingRun
from dlrm_app.training.train import train_batches

NUM_BATCHES = 16
"""Kept in memory and taken in turn."""


def take_first_step(run: TrainingRun) -> None:
    """With all that waits for it: readers, batches under way, what is compiled or measured once."""
    with closing(_epochs(run)) as epochs:
        time_steps(run, epochs, warm_up=0, steps=1)


def measure_model(run: TrainingRun, floors: Mapping[str, float], warm_up: int, steps: int) -> Section:
    """Steps alone: no reader works beside them."""
    batches: list[Batch] = []
    while len(batches) < NUM_BATCHES:  # a small dataset has fewer
        with train_batches(run) as loader:
            batches += itertools.islice(loader, NUM_BATCHES - len(batches))
    return _measure("model alone", run, itertools.cycle(batches), floors, warm_up, steps)


def measure_whole(run: TrainingRun, floors: Mapping[str, float], warm_up: int, steps: int) -> Section:
    """Steps as dlrm-train takes them, from disk."""
    with closing(_epochs(run)) as epochs:
        return _measure("whole step, from disk", run, epochs, floors, warm_up, steps)


def _epochs(run: TrainingRun) -> Generator[Batch, None, None]:
    while True:
        with train_batches(run) as loader:
            yield from loader


def _measure(
    name: str,
    run: TrainingRun,
    batches: Iterator[Batch],
    floors: Mapping[str, float],
    warm_up: int,
    steps: int,
) -> Section:
    times = time_steps(run, batches, warm_up, steps)
    lines = tuple(
        line(TITLES[part], [by_part.get(part, 0.0) for _, by_part in times], floors.get(part), what)
        for part, what in PARTS.items()
    )
    whole = line("all", [ms for ms, _ in times], sum(floors.values()))
    return Section(name, whole, lines, run.config.trainer.global_batch_size)
