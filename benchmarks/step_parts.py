"""What dividing a step into its parts costs: blocks of steps with it and without, in turn, on batches in memory.

    python benchmarks/step_parts.py data.path=DATA tables=… trainer.precision=bf16

Takes dlrm-train's keys. Prints the median over pairs of blocks of how much longer a step takes with it, and the same
reckoned from the number of marks a step and the time of one.
"""

import itertools
import statistics
import sys
import time
from collections.abc import Iterator

from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.loader.batch import Batch, TrainBatches
from dlrm_app.training.instruments.step_parts import StepParts
from dlrm_app.training.setup import build_trainable, open_dataset

STEPS, PAIRS, NUM_BATCHES = 20, 16, 8


def main() -> None:
    config = compose_config("train", TrainConfig, sys.argv[1:])
    with start_runtime(config.trainer.threads) as runtime:
        manifest, tables = open_dataset(config, runtime)
        trainable = build_trainable(config, tables, len(manifest.dense), runtime)
        batch_size = config.trainer.global_batch_size
        loader = TrainBatches(manifest, trainable.features, global_batch_size=batch_size)
        with loader:
            batches = list(itertools.islice(loader, NUM_BATCHES))
        parts = StepParts(trainable.model, trainable.optimizer, trainable.pipeline, runtime.device, True)
        stream = parts.waiting(itertools.cycle(batches))

        def seconds_with() -> float:
            started = time.perf_counter()
            for _ in range(STEPS):
                with parts.step():
                    trainable.pipeline.progress(stream)
            parts.restart()
            return (time.perf_counter() - started) / STEPS

        def seconds_without() -> float:
            started = time.perf_counter()
            for _ in range(STEPS):
                trainable.pipeline.progress(stream)
            return (time.perf_counter() - started) / STEPS

        seconds_with(), seconds_without()
        ratios, steps = [], []
        for pair in range(PAIRS):
            first, second = (seconds_with, seconds_without) if pair % 2 else (seconds_without, seconds_with)
            a, b = first(), second()
            with_parts, without = (a, b) if pair % 2 else (b, a)
            ratios.append(with_parts / without)
            steps.append(without)
        report(ratios, statistics.median(steps), parts, stream, trainable)


def report(
    ratios: list[float], step: float, parts: StepParts, stream: Iterator[Batch], trainable: object
) -> None:
    with parts.step():
        trainable.pipeline.progress(stream)  # type: ignore[attr-defined]
        num_marks = len(parts._marks)
        started = time.perf_counter()
        for _ in range(1000):
            with parts.within("other"):
                pass
        mark = (time.perf_counter() - started) / 2000
    print(f"a step takes {1000 * step:.1f} ms; with its parts measured {statistics.median(ratios) - 1:+.2%}")
    print(f"({min(ratios) - 1:+.2%} to {max(ratios) - 1:+.2%} in {PAIRS} pairs of {STEPS} steps)")
    print(
        f"reckoned: {num_marks} marks of {1e6 * mark:.2f} µs, {num_marks * mark / step:.3%}, hooks' own time left out"
    )


if __name__ == "__main__":
    main()
