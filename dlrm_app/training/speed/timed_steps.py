"""Steps timed one by one, whole and by part."""

import time
from collections.abc import Iterator

from dlrm_app.data.batch import Batch
from dlrm_app.training.run import TrainingRun


def time_steps(
    run: TrainingRun, batches: Iterator[Batch], warm_up: int, steps: int
) -> list[tuple[float, dict[str, float]]]:
    """(milliseconds, those of each part) of ``steps`` steps after ``warm_up`` others. Every rank must call it."""
    stream = run.parts.waiting(batches)
    times = []
    run.trainable.model.train()
    for _ in range(warm_up + steps):
        started = time.perf_counter()
        with run.parts.step():
            run.trainable.pipeline.progress(stream)
        by_part = run.parts.mean_ms(run.runtime)  # waits for the device and the other ranks
        times.append((1000 * (time.perf_counter() - started), by_part))
    run.trainable.pipeline.detach()
    return times[warm_up:]
