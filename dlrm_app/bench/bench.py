"""dlrm-bench: loader, model and whole step, each alone, beside the least time that this machine could take."""

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import torch

from dlrm_app.bench.machine import measure_machine, measure_topology, shape_of, write_inputs
from dlrm_app.bench.result import BenchResult, Section, bench_text
from dlrm_app.bench.sections import measure_loader, measure_model, measure_whole
from dlrm_app.config.like_train import BenchConfig
from dlrm_app.distributed.runtime import Runtime, scratch_folder, start_runtime
from dlrm_app.files import explained_disk_errors, write_json, write_text
from dlrm_app.runs.folder import open_run_folder
from dlrm_app.sharding.step_estimate import Machine, step_work
from dlrm_app.text import next_line
from dlrm_app.training.setup import open_dataset
from dlrm_app.training.state import TrainingRun
from dlrm_app.training.train import prepare

MIN_ROWS, MIN_BATCHES = 100_000, 8
"""Synthetic rows: at least so many, and for so many batches."""


def bench(config: BenchConfig) -> BenchResult | None:
    """Measures and prints what ``config.measure`` names, and writes bench.json if ``output`` names a folder; None on other ranks.

    If ``output`` names a YAML file, measures this machine for that file instead, and gives None. Raises DlrmError.
    """
    trainer = config.trainer
    timeout = timedelta(minutes=trainer.timeout_minutes)
    with start_runtime(trainer.threads, timeout=timeout) as runtime:
        with scratch_folder(runtime, "dlrm-bench-") as scratch:
            if config.writes_topology:
                topology = measure_topology(config, runtime, scratch)
                if runtime.is_first:
                    path = Path(config.output or "")
                    with explained_disk_errors(path.parent, "then measure again"):
                        path.parent.mkdir(parents=True, exist_ok=True)
                        write_text(path, topology)
                    print(
                        f"wrote {path}\n{next_line('dlrm-plan', {'topology': path}, 'tables=…', 'model=…')}"
                    )
                return None
            result = _measure(config, runtime, scratch)
        if not runtime.is_first:
            return None
        print(f"\n{bench_text(result)}\n")
        if config.output is None:
            print("next: add output=FOLDER for bench.json")
        else:
            folder = Path(config.output)
            with explained_disk_errors(folder, "then measure again"):
                folder.mkdir(parents=True, exist_ok=True)
                write_json(folder / "bench.json", asdict(result))
            print(f"wrote {folder / 'bench.json'}")
        return result


def _measure(config: BenchConfig, runtime: Runtime, scratch: Path) -> BenchResult:
    if config.data.path is None:
        config = replace(config, data=replace(config.data, path=str(scratch / "dataset")))
        rows = max(MIN_ROWS, MIN_BATCHES * config.trainer.global_batch_size)
        folder = scratch / "dataset"
        runtime.together(lambda: write_inputs(config, folder, rows) if runtime.is_first else None)
    manifest, tables = runtime.together(lambda: open_dataset(config, runtime))
    with open_run_folder(str(scratch / "run"), "none", runtime) as run_folder:
        run = prepare(config, manifest, tables, run_folder, runtime)
        machine = measure_machine(runtime)  # once TF32 is chosen, or is not
        return BenchResult(_describe(machine, runtime), tuple(_sections(run, config, machine)))


def _sections(run: TrainingRun, config: BenchConfig, machine: Machine) -> Iterator[Section]:
    work = step_work(shape_of(run))
    floors = machine.floors_ms(work, run.config.trainer.precision)
    sections: dict[str, Callable[[], Section]] = {
        "loader": lambda: measure_loader(run),
        "model": lambda: measure_model(run, floors, config.warm_up, config.steps),
        "step": lambda: measure_whole(run, floors, config.warm_up, config.steps),
    }
    yield from (measure() for name, measure in sections.items() if name in config.measure)


def _describe(machine: Machine, runtime: Runtime) -> dict[str, str]:
    name, info = platform.machine(), Path("/proc/cpuinfo")
    if runtime.device.type == "cuda":
        name = torch.cuda.get_device_name(runtime.device)
    elif info.exists():
        models = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        name = models[0].split(": ", 1)[1] if models else name
    rates = (f"{kind} {rate / 1e9:,.0f} GFLOP/s" for kind, rate in machine.flops.items())
    described = {
        "device": f"{name}, {len(os.sched_getaffinity(0))} cores",
        "ranks": f"{runtime.world_size}, {runtime.num_threads} thread(s) each",
        "matrix products": ", ".join(rates),
        "memory, copied": f"{machine.memory / 1e9:,.1f} GB/s read and written",
    }
    if runtime.world_size > 1:
        described["exchange"] = f"{machine.exchange / 1e9:,.2f} GB/s sent by each rank"
    return described
