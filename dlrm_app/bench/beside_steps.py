"""What a run does beside its steps: loading, evaluating, saving."""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import torch

from dlrm_app.bench.result import Section, line
from dlrm_app.evaluation.evaluate import evaluate
from dlrm_app.evaluation.forward_passes import SizedBatches
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.files import temporary_name
from dlrm_app.loader.batch import Batch
from dlrm_app.runs.checkpoint.checkpoints import Checkpoints
from dlrm_app.training.run import TrainingRun, run_tensors, save
from dlrm_app.training.split_evaluation import split_batches
from dlrm_app.training.train import train_batches

REPEATS = 5
LOADED = 4_000_000
"""Rows: the first batch waits for a row group of every lane, which as many rows must pay for as the groups hold."""
WRITTEN = 128 * 2**20
"""Bytes of the file that tells how fast the disk is."""


def measure_loader(run: TrainingRun) -> Section:
    """An epoch of this rank's batches, or the most of it that fits in; nobody takes a step meanwhile."""
    batches = max(1, min(run.batches_per_epoch, LOADED // run.config.trainer.global_batch_size))
    rows = batches * run.config.trainer.global_batch_size

    def load() -> None:
        with train_batches(run) as loader:
            for _ in itertools.islice(loader, batches):
                pass

    load()
    decode = decode_ms(run, rows)
    return Section(
        "loader alone",
        line("all", [timed(load) for _ in range(REPEATS)], decode),
        (),
        rows,
        "least: Parquet decoded by Arrow with every thread, no rows moved",
    )


def decode_ms(run: TrainingRun, rows: int) -> float:
    """What Arrow alone takes to decode so many training rows, of those that a rank reads."""
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


class First:
    """The first ``count`` batches of an evaluation."""

    def __init__(self, batches: SizedBatches, count: int) -> None:
        self._batches, self._count = batches, min(count, len(batches))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        return itertools.islice(iter(self._batches), self._count)


def measure_evaluation(run: TrainingRun, forward_ms: float) -> Section:
    """Batches of val, or of train where there is no val, with exact metrics. ``forward_ms``: a training step's least."""
    config, runtime = run.config, run.runtime
    split = next(name for name in ("val", "train") if name in run.manifest.splits)
    size = config.evaluation_rows(runtime.world_size, runtime.device_type)
    count = max(1, 200_000 // size)
    metrics = ClickMetrics(split, config.evaluation.group_by)
    times = []
    for _ in range(REPEATS):
        with split_batches(run, split) as batches:
            first = First(batches, count)
            work = partial(evaluate, run.trainable.model, first, metrics, runtime, "evaluate")
            times.append(timed(work))
    rows = min(len(first) * size * runtime.world_size, run.manifest.splits[split].rows)
    local = config.trainer.global_batch_size // runtime.world_size
    least = forward_ms * rows / runtime.world_size / local
    note = f"{split}; least: the forward pass in fp32"
    return Section("evaluation", line("all", times, least), (), rows, note)


def measure_checkpoint(run: TrainingRun, folder: Path) -> Section:
    """Saving everything that a run goes on from."""
    times = []
    with Checkpoints(folder / "checkpoints", run.config.checkpoint, run.runtime) as checkpoints:

        def save_whole() -> None:
            save(run, checkpoints)
            checkpoints.wait()

        for _ in range(REPEATS):
            times.append(timed(save_whole))
            run.progress.step += 1  # a name of its own
    num_bytes = sum(_local_bytes(value) for value in run_tensors(run).values())
    disk = disk_rate(folder)
    least = 1000 * num_bytes / disk
    note = f"{num_bytes / 2**20:,.0f} MiB a rank; least: written to this disk at {disk / 1e6:,.0f} MB/s"
    return Section("checkpoint", line("all", times, least), (), None, note)


def _local_bytes(value: object) -> int:
    shards = value.local_shards() if hasattr(value, "local_shards") else None
    tensors = [shard.tensor for shard in shards] if shards is not None else [value]
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))


def disk_rate(folder: Path) -> float:
    """Bytes a second written to a file and put on the disk; each rank has a file of its own."""
    block, path = bytes(WRITTEN), temporary_name(folder / "written")
    rates = []
    for _ in range(3):
        started = time.perf_counter()
        with path.open("wb") as file:
            file.write(block)
            os.fsync(file.fileno())
        rates.append(WRITTEN / (time.perf_counter() - started))
        path.unlink()
    return sorted(rates)[1]


def timed(work: Callable[[], object]) -> float:
    """Milliseconds."""
    started = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - started)
