"""How fast a step is beside what this device's memory and matrix units allow, both measured here."""

import time
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.loader.batch import Batch
from dlrm_app.sharding.estimate.measure import measure_machine
from dlrm_app.sharding.estimate.work import step_work
from dlrm_app.tables.specs import Table, resolve_tables
from dlrm_app.training.setup import build_trainable
from dlrm_app.training.speed.shape import step_shape

NUM_DENSE, WARM_UP, TIMED = 13, 5, 20
TABLES = """\
pooling: sum
init: uniform
specs:
  - {name: t, count: 26, rows: ROWS, dim: 128, features: [f]}
"""
ROWS = {"cuda": 1_000_000, "cpu": 5_000}
BATCH = {"cuda": 16_384, "cpu": 256}
MODEL = ["model=dlrm", "model.bottom_mlp=[512,256,128]", "model.top_mlp=[1024,1024,512,256,1]"]


def tables_text(device: str) -> str:
    """The tables of the measurement: MLPerf DLRM's widths, fewer rows."""
    return TABLES.replace("ROWS", str(ROWS[device]))


def measure_speed(legs: list[list[str]]) -> dict[str, object]:
    """Rows a second of all ranks, milliseconds of a step, and those of the floor; random ids, without the reader."""
    (settings,) = legs
    config = compose_config("train", TrainConfig, settings)
    with start_runtime(config.trainer.threads) as runtime:
        tables = resolve_tables(config.tables, None)
        trainable = build_trainable(config, tables, NUM_DENSE, runtime)
        rows = config.trainer.global_batch_size // runtime.world_size
        batches = [draw_batch(tables, rows, seed, runtime.device) for seed in range(4)]
        stream: Iterator[Batch] = cycle(batches)
        trainable.model.train()
        _progress(trainable.pipeline, stream, WARM_UP)
        _wait(runtime.device)
        started = time.perf_counter()
        _progress(trainable.pipeline, stream, TIMED)
        _wait(runtime.device)
        seconds = (time.perf_counter() - started) / TIMED
        work = step_work(step_shape(config, trainable.plan, trainable.model.module))
        floors = measure_machine(runtime).floors_ms(work, config.trainer.precision)
    return {
        "rows_per_second": rows * runtime.world_size / seconds,
        "ms": 1000 * seconds,
        "floor_ms": sum(floors.values()),
    }


def _progress(pipeline: Any, stream: Iterator[Batch], steps: int) -> None:
    for _ in range(steps):
        pipeline.progress(stream)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def draw_batch(tables: Sequence[Table], rows: int, seed: int, device: torch.device) -> Batch:
    """Random rows, where a reader for ``device`` puts them."""
    generator = torch.Generator().manual_seed(seed)
    keys = [name for table in tables for name in table.features]
    ids = torch.cat([torch.randint(0, table.rows, (rows,), generator=generator) for table in tables])
    features = KeyedJaggedTensor(
        keys, ids.int(), lengths=torch.ones(len(ids), dtype=torch.int32), stride=rows
    )
    dense = torch.rand(rows, NUM_DENSE, generator=generator)
    labels = (torch.rand(rows, generator=generator) < 0.25).float()
    if device.type == "cuda":  # as the reader's
        dense, features, labels = dense.pin_memory(), features.pin_memory(), labels.pin_memory()
    return Batch(dense, features, labels, rows)
