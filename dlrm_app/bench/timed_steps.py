"""Steps timed one by one, whole and by part."""

import time
from collections.abc import Iterator

import torch

from dlrm_app.distributed.collectives import all_reduce_sum
from dlrm_app.loader.batch import Batch
from dlrm_app.runs.events import PARTS
from dlrm_app.training.state import TrainingRun


def time_steps(
    run: TrainingRun, batches: Iterator[Batch], warm_up: int, steps: int
) -> list[tuple[float, dict[str, float]]]:
    """(milliseconds, those of each part) of ``steps`` steps after ``warm_up`` others, means over ranks.

    Ranks tell each other their times at the end: in training they do not meet after each step either. Every rank must
    call it.
    """
    stream = run.parts.waiting(batches)
    times = []
    run.trainable.model.train()
    for _ in range(warm_up + steps):
        started = time.perf_counter()
        with run.parts.step():
            run.trainable.pipeline.progress(stream)
        mine = run.parts.read()  # waits for the device
        times.append([time.perf_counter() - started, *(mine.get(part, 0.0) for part in PARTS)])
    run.trainable.pipeline.detach()
    seconds = torch.tensor(times[warm_up:], dtype=torch.float64, device=run.runtime.device)
    means = 1000 * all_reduce_sum(seconds) / run.runtime.world_size
    return [
        (whole, {part: ms for part, ms in zip(PARTS, by_part, strict=True) if ms})
        for whole, *by_part in means.tolist()
    ]
