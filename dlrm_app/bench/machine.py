"""Measures this machine's rates, and how near a training step comes to them, for a topology file for dlrm-plan.

Two small models are trained for some steps on batches in memory, with the configuration's model kind, optimizers and
precision. For each part of a step a line through both results gives a fixed time, and the efficiency relative to the
machine's rates.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
import yaml

from dlrm_app.bench.sections import time_steps
from dlrm_app.config.compose import compose_config
from dlrm_app.config.datasets import GenerateConfig
from dlrm_app.config.like_train import BenchConfig
from dlrm_app.config.sharding import TopologyConfig
from dlrm_app.config.train import TablesConfig
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.kernels.dense_layers import is_for_onednn, multiply
from dlrm_app.model.loss import set_tf32
from dlrm_app.runs.folder import open_run_folder
from dlrm_app.sharding.cluster import GIB, running_cluster
from dlrm_app.sharding.step_estimate import Machine, step_work
from dlrm_app.synthetic import generate
from dlrm_app.training.loop import train_batches
from dlrm_app.training.setup import open_dataset
from dlrm_app.training.train import prepare

PRODUCT_SHAPE = {"cpu": (2048, 512), "cuda": (8192, 4096)}
"""Rows and width of a product of [rows, width] and [width, width], like an MLP's layers; large enough to fill a GPU."""
COPIED_BYTES = {"cpu": 64 << 20, "cuda": 512 << 20}
"""Bytes of a copy: more than the device's caches hold."""
SENT_BYTES = 4 << 20
"""Bytes sent from each rank to all ranks."""
SECONDS = 0.3
"""Seconds for which each measurement is repeated."""
WARM_STEPS, STEPS = 5, 16


def measure_machine(runtime: Runtime) -> Machine:
    """Measures the machine, on all ranks at the same time, as in training. Every rank must call it."""
    return Machine(
        flops={"fp32": gemm_rate(torch.float32, runtime), "bf16": gemm_rate(torch.bfloat16, runtime)},
        memory=memory_rate(runtime),
        exchange=exchange_rate(runtime),
        device=runtime.device.type,
    )


def gemm_rate(kind: torch.dtype, runtime: Runtime) -> float:
    """Flops a second of matrix products."""
    rows, width = PRODUCT_SHAPE[runtime.device_type]
    factors = [torch.randn(each, width, device=runtime.device).to(kind) for each in (rows, width)]
    product = multiply if is_for_onednn(factors[0]) else torch.mm  # as in the layers
    return 2.0 * rows * width * width / median_seconds(lambda: product(*factors), runtime)


def memory_rate(runtime: Runtime) -> float:
    """Bytes read and written a second."""
    num_bytes = COPIED_BYTES[runtime.device_type]
    source = torch.ones(num_bytes // 4, device=runtime.device)
    target = torch.empty_like(source)
    return 2 * num_bytes / median_seconds(lambda: target.copy_(source), runtime)


def exchange_rate(runtime: Runtime) -> float:
    """Bytes a second that a rank sends when all send to all; infinite for a single rank."""
    if runtime.world_size == 1:
        return float("inf")
    source = torch.ones(SENT_BYTES // 4, device=runtime.device)
    target = torch.empty_like(source)
    seconds = median_seconds(lambda: dist.all_to_all_single(target, source), runtime, repeats=20)
    return SENT_BYTES * (runtime.world_size - 1) / runtime.world_size / seconds


def median_seconds(work: Callable[[], object], runtime: Runtime, repeats: int | None = None) -> float:
    """The median time of ``work`` after a warm-up. ``repeats``: the number of repeats, if it must be the same on every rank."""
    times: list[float] = []
    work()
    ends = time.perf_counter() + SECONDS
    while len(times) < (repeats or 5) or (repeats is None and time.perf_counter() < ends):
        _finish(runtime)
        started = time.perf_counter()
        work()
        _finish(runtime)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _finish(runtime: Runtime) -> None:
    if runtime.device.type == "cuda":
        torch.cuda.synchronize(runtime.device)


@dataclass(frozen=True)
class Probe:
    """A model to measure: equal tables, and the widths of its MLPs."""

    num_tables: int
    rows: int
    dim: int
    mlp: tuple[int, ...]
    batch_size: int


PROBES = (Probe(8, 20_000, 16, (64, 32), 1024), Probe(26, 100_000, 32, (512, 256), 4096))
Reading = tuple[Mapping[str, float], Mapping[str, float]]
"""(least times, measured times) of a probe, in milliseconds by part."""


def measure_topology(
    config: BenchConfig,
    runtime: Runtime,
    scratch: Path,
    probes: Sequence[Probe] = PROBES,
    steps: int = STEPS,
) -> str:
    """The text of a topology file for the ranks that were started. Every rank must call it."""
    set_tf32(config.trainer.tf32, runtime.device)
    machine = measure_machine(runtime)
    small, large = (
        run_probe(_probing(config, probe, steps, scratch / str(index), runtime), machine, steps, runtime)
        for index, probe in enumerate(probes)
    )
    return topology_text(fit(machine, small, large), config, runtime)


def run_probe(config: BenchConfig, machine: Machine, steps: int, runtime: Runtime) -> Reading:
    """Trains a probe's model for some steps. Every rank must call it."""
    manifest, tables = open_dataset(config, runtime)
    with open_run_folder(f"{config.data.path}-run", "none", runtime) as folder:
        run = prepare(config, manifest, tables, folder, runtime)
        with train_batches(run) as batches:
            kept = list(batches)
        readings = [by_part for _, by_part in time_steps(run, iter(kept), WARM_STEPS, steps)]
        parts = {part for reading in readings for part in reading}
        times = {part: statistics.median(reading.get(part, 0.0) for reading in readings) for part in parts}
        plan, model, dense = run.trainable.plan, run.trainable.model.module, config.optimizer.dense.kind
        work = step_work(plan, model, config.model, config.trainer.global_batch_size, dense)
        return machine.floors_ms(work, config.trainer.precision), times


def fit(machine: Machine, small: Reading, large: Reading) -> Machine:
    """Adds to ``machine`` the line of each part through both probes; no line goes below zero."""
    efficiency, fixed = {}, {}
    for part, ms in large[1].items():
        floors = [probe[0].get(part, 0.0) for probe in (small, large)]
        if floors[0] == floors[1]:  # has no counted work, only a fixed time
            fixed[part] = ms
            continue
        slope = (ms - small[1].get(part, 0.0)) / (floors[1] - floors[0])
        start = ms - slope * floors[1]
        if start < 0 or slope <= 0:
            start, slope = 0.0, ms / floors[1]
        fixed[part], efficiency[part] = start, 1 / slope
    return replace(machine, efficiency=efficiency, fixed_ms=fixed)


def topology_text(machine: Machine, config: BenchConfig, runtime: Runtime) -> str:
    """The text of a topology file for the measuring ranks."""
    cluster = running_cluster(TopologyConfig(), runtime)
    link = 10.0 if runtime.world_size == 1 else round(machine.exchange / 1e9, 4)
    values = {
        "nodes": cluster.nodes,
        "devices_per_node": cluster.devices_per_node,
        "device": cluster.device,
        "memory_gib": round(cluster.memory / GIB, 3),
        "host_memory_gib": round(cluster.host_memory / GIB, 3),
        "reserved_share": cluster.reserved_share,
        "memory_gbps": round(machine.memory / 1e9, 3),
        "intra_node_gbps": link,
        "inter_node_gbps": link,
        "fp32_tflops": round(machine.flops["fp32"] / 1e12, 5),
        "bf16_tflops": round(machine.flops["bf16"] / 1e12, 5),
        "efficiency": {part: round(value, 5) for part, value in sorted(machine.efficiency.items())},
        "fixed_ms": {part: round(value, 4) for part, value in sorted(machine.fixed_ms.items())},
    }
    what = f"{config.model.kind}, {config.optimizer.sparse.kind} and {config.optimizer.dense.kind}, {config.trainer.precision}"
    head = f"# Measured by dlrm-bench on {runtime.world_size} rank(s) of {runtime.num_threads} thread(s), with {what}.\n"
    return head + yaml.safe_dump(values, sort_keys=False)


def _probing(config: BenchConfig, probe: Probe, steps: int, folder: Path, runtime: Runtime) -> BenchConfig:
    """``config`` with ``probe``'s tables, MLPs and batch size; the first rank writes rows for it to ``folder``."""
    names = [f"f_{index}" for index in range(probe.num_tables)]
    like = {"rows": probe.rows, "dim": probe.dim}
    config = replace(
        config,
        data=replace(config.data, path=str(folder)),
        tables=TablesConfig(specs=[{"name": f"t_{name}", "features": [name], **like} for name in names]),
        model=replace(config.model, bottom_mlp=[*probe.mlp, probe.dim], top_mlp=[*probe.mlp, 1]),
        trainer=replace(
            config.trainer, global_batch_size=probe.batch_size, epochs=1, max_steps=WARM_STEPS + steps
        ),
        topology=TopologyConfig(),
        sharding=replace(config.sharding, plan=None, tables={}),
        profiler=False,
        output=None,  # it names the topology file, not a run folder
    )
    rows = probe.batch_size * (WARM_STEPS + steps + 1)
    runtime.together(lambda: write_inputs(config, folder, rows) if runtime.is_first else None)
    return config


def write_inputs(config: BenchConfig, folder: Path, rows: int) -> None:
    """Writes a dataset of synthetic rows for ``config.tables``; val gets a tenth as many."""
    keys = ["format=dataset", f"output={folder}", f"num_dense={config.num_dense}"]
    asked = compose_config("generate", GenerateConfig, keys)
    asked.tables, asked.rows, asked.val_rows = config.tables, rows, rows // 10
    generate(asked)
