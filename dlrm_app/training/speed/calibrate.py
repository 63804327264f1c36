"""dlrm-plan calibrate=true: how fast this machine does each part of a step, as a topology file to plan with.

Two probes of different size train for some steps on batches in memory, with the configuration's kind of model, optimizers
and precision. Through both goes a line for each part: what it takes for no rows at all, and the share that it reaches of what
the machine could do. The loader is measured by itself.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from statistics import median

import yaml

from dlrm_app.config.compose import compose_config
from dlrm_app.config.generate import GenerateConfig
from dlrm_app.config.plan import PlanConfig
from dlrm_app.config.sharding import TopologyConfig
from dlrm_app.config.train import TablesConfig, TrainConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.distributed.scratch import scratch_folder
from dlrm_app.files import explained_disk_errors, write_text
from dlrm_app.model.precision import set_tf32
from dlrm_app.runs.folder import open_run_folder
from dlrm_app.sharding.cluster import GIB, running_cluster
from dlrm_app.sharding.estimate.machine import Machine
from dlrm_app.sharding.estimate.measure import measure_machine
from dlrm_app.sharding.estimate.work import Work, step_work
from dlrm_app.synthetic import generate
from dlrm_app.tables.specs import Table
from dlrm_app.training.instruments.timed_steps import time_steps
from dlrm_app.training.precision_choice import with_precision
from dlrm_app.training.setup import open_dataset
from dlrm_app.training.speed.loader_rates import measure_loader_rates
from dlrm_app.training.speed.shape import step_shape
from dlrm_app.training.train import prepare, train_batches

logger = logging.getLogger(__name__)

WARM_STEPS, STEPS = 5, 16


@dataclass(frozen=True)
class Probe:
    """A model to measure: tables alike, ids of each for a row, and the widths of its MLPs."""

    num_tables: int
    rows: int
    dim: int
    mlp: tuple[int, ...]
    batch_size: int
    ids: int = 1


PROBES = (Probe(8, 20_000, 16, (64, 32), 1024), Probe(26, 100_000, 32, (512, 256), 4096))
LOADER_PROBE = Probe(8, 100_000, 16, (16,), 4096, ids=10)
Measured = tuple[Mapping[str, Work], Mapping[str, float]]
"""A probe's work and its milliseconds by part."""


def calibrate(config: PlanConfig) -> Path:
    """Measures on the ranks that were started, writes ``output``/topology.yaml, and gives its path."""
    trainer = config.trainer
    assert config.output is not None
    path = Path(config.output) / "topology.yaml"
    timeout = timedelta(minutes=trainer.timeout_minutes)
    with start_runtime(trainer.threads, numa=trainer.numa, timeout=timeout) as runtime:
        config = with_precision(config, None, runtime)
        set_tf32(config.trainer.tf32, runtime.device)
        machine = measure_machine(runtime)
        with scratch_folder(runtime, "dlrm-calibrate-") as scratch:
            small, large = (
                run_probe(config, probe, scratch / str(index), runtime) for index, probe in enumerate(PROBES)
            )
            rows, ids = read_probe(config, LOADER_PROBE, scratch / "loader", runtime)
        calibrated = fit(machine, small, large, config.trainer.precision)
        calibrated = replace(calibrated, loader_rows=rows, loader_ids=ids)
        if runtime.is_first:
            _write(path, topology_text(calibrated, config, runtime))
    return path


def run_probe(config: PlanConfig, probe: Probe, scratch: Path, runtime: Runtime) -> Measured:
    """Trains ``probe`` as ``config`` says how. Every rank must call it."""
    asked, manifest, tables = _open_probe(config, probe, scratch, runtime)
    with open_run_folder(str(scratch / "run"), "none", runtime) as folder:
        run = prepare(asked, manifest, tables, folder, runtime)
        with train_batches(run) as batches:
            kept = list(batches)
        readings = [by_part for _, by_part in time_steps(run, iter(kept), WARM_STEPS, STEPS)]
        parts = {part for reading in readings for part in reading}
        times = {part: median(reading.get(part, 0.0) for reading in readings) for part in parts}
        return step_work(step_shape(asked, run.trainable.plan, run.trainable.model.module)), times


def read_probe(config: PlanConfig, probe: Probe, scratch: Path, runtime: Runtime) -> tuple[float, float]:
    """Rows and ids a second that ``probe``'s rows are read at. Every rank must call it, for they read at once."""
    asked, manifest, tables = _open_probe(config, probe, scratch, runtime)
    return measure_loader_rates(
        asked, manifest, [name for table in tables for name in table.features], runtime
    )


def fit(machine: Machine, small: Measured, large: Measured, precision: str) -> Machine:
    """``machine`` with the line of each part through both probes; none goes below nothing."""
    efficiency, fixed = {}, {}
    for part, ms in large[1].items():
        floors = [machine.floor_ms(probe[0].get(part, Work()), precision) for probe in (small, large)]
        if floors[0] == floors[1]:  # no work here, which only takes time
            fixed[part] = ms
            continue
        times = [probe[1].get(part, 0.0) for probe in (small, large)]
        slope = (times[1] - times[0]) / (floors[1] - floors[0])
        start = times[0] - slope * floors[0]
        if start < 0 or slope <= 0:
            start, slope = 0.0, times[1] / floors[1]
        fixed[part], efficiency[part] = start, 1 / slope
    return replace(machine, efficiency=efficiency, fixed_ms=fixed)


def topology_text(machine: Machine, config: PlanConfig, runtime: Runtime) -> str:
    """A topology file of the ranks that measured."""
    cluster = running_cluster(TopologyConfig(), runtime)
    what = f"{config.model.kind}, {config.optimizer.sparse.kind} and {config.optimizer.dense.kind}, {config.trainer.precision}"
    values: dict[str, object] = {field.name: None for field in fields(TopologyConfig)}
    rate = round(machine.memory / 1e9, 3)
    link = 10.0 if runtime.world_size == 1 else round(machine.exchange / 1e9, 4)
    values |= {
        "nodes": cluster.nodes,
        "devices_per_node": cluster.devices_per_node,
        "device": cluster.device,
        "memory_gib": round(cluster.memory / GIB, 3),
        "host_memory_gib": round(cluster.host_memory / GIB, 3),
        "reserved_share": 0.15,
        "memory_gbps": rate,
        "intra_node_gbps": link,
        "inter_node_gbps": link,
        "fp32_tflops": round(machine.flops["fp32"] / 1e12, 5),
        "bf16_tflops": round(machine.flops["bf16"] / 1e12, 5),
        "loader_rows_per_second": round(machine.loader_rows),
        "loader_ids_per_second": round(machine.loader_ids),
        "efficiency": {part: round(value, 5) for part, value in sorted(machine.efficiency.items())},
        "fixed_ms": {part: round(value, 4) for part, value in sorted(machine.fixed_ms.items())},
    }
    head = f"# Measured by dlrm-plan calibrate=true on {runtime.world_size} rank(s) of {runtime.num_threads} thread(s), with {what}.\n"
    return head + yaml.safe_dump(
        {key: value for key, value in values.items() if value is not None}, sort_keys=False
    )


def _probe_config(config: PlanConfig, probe: Probe, dataset: str) -> TrainConfig:
    specs = [
        {
            "name": f"t_{index}",
            "rows": probe.rows,
            "dim": probe.dim,
            "features": [f"f_{index}"],
            "pooling_factors": [probe.ids],
        }
        for index in range(probe.num_tables)
    ]
    model = replace(config.model, bottom_mlp=[*probe.mlp, probe.dim], top_mlp=[*probe.mlp, 1])
    trainer = replace(
        config.trainer, global_batch_size=probe.batch_size, epochs=1, max_steps=WARM_STEPS + STEPS
    )
    values = {field.name: getattr(config, field.name) for field in fields(TrainConfig)}
    values |= {
        "data": replace(config.data, path=dataset),
        "tables": TablesConfig(specs=specs),
        "model": model,
        "trainer": trainer,
        "topology": TopologyConfig(),
        "sharding": replace(config.sharding, plan=None, tables={}),
        "profiler": False,
    }
    return TrainConfig(**values)


def _open_probe(
    config: PlanConfig, probe: Probe, scratch: Path, runtime: Runtime
) -> tuple[TrainConfig, Manifest, list[Table]]:
    asked = _probe_config(config, probe, str(scratch / "dataset"))
    runtime.together(lambda: _write_rows(asked, probe, scratch) if runtime.is_first else None)
    return asked, *runtime.together(lambda: open_dataset(asked, runtime))


def _write_rows(asked: TrainConfig, probe: Probe, scratch: Path) -> None:
    keys = ["format=dataset", f"output={scratch / 'dataset'}"]
    keys.append(f"rows={probe.batch_size * (WARM_STEPS + STEPS + 1)}")
    rows = compose_config("generate", GenerateConfig, keys)
    rows.tables = asked.tables
    generate(rows)


def _write(path: Path, text: str) -> None:
    with explained_disk_errors(path.parent, "then calibrate again"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    print(f"wrote {path}\nnext: dlrm-plan tables=… model=… topology={path}")
