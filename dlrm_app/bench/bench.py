"""dlrm-bench: measures loader, model and whole step separately, or writes a topology file of this machine."""

import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch

from dlrm_app.bench.machine import measure_topology, write_inputs
from dlrm_app.bench.sections import Section, measure_loader, measure_model, measure_whole
from dlrm_app.config.like_train import BenchConfig
from dlrm_app.distributed.runtime import Runtime, scratch_folder, start_runtime
from dlrm_app.files import explained_disk_errors, write_json, write_text
from dlrm_app.runs.folder import open_run_folder
from dlrm_app.text import next_line
from dlrm_app.training.setup import open_dataset
from dlrm_app.training.train import prepare

MIN_ROWS, MIN_BATCHES = 100_000, 8
"""The least number of synthetic rows, and of batches."""


@dataclass(frozen=True)
class BenchResult:
    """A description of the machine, and the measured sections in order."""

    machine: dict[str, str]
    sections: tuple[Section, ...]


def bench(config: BenchConfig) -> BenchResult | None:
    """Measures and prints the sections in ``config.measure``, and writes bench.json if ``output`` names a folder.

    If ``output`` names a YAML file, writes a topology file of this machine instead, and returns None. Raises DlrmError.
    """
    timeout = timedelta(minutes=config.trainer.timeout_minutes)
    with start_runtime(config.trainer.threads, timeout=timeout) as runtime:
        with scratch_folder(runtime, "dlrm-bench-") as scratch:
            topology = measure_topology(config, runtime, scratch) if config.writes_topology else None
            result = _measure(config, runtime, scratch) if topology is None else None
        if runtime.is_first:
            _report(result, topology, Path(config.output) if config.output else None)
        return result


def _report(result: BenchResult | None, topology: str | None, output: Path | None) -> None:
    if result is not None:
        machine = "\n".join(f"{name}: {value}" for name, value in result.machine.items())
        print("\n" + "\n\n".join([machine, *map(str, result.sections)]) + "\n")
    if output is None:
        print("next: add output=FOLDER for bench.json")
        return
    path = output / "bench.json" if topology is None else output
    with explained_disk_errors(path.parent, "then measure again"):
        path.parent.mkdir(parents=True, exist_ok=True)
        if topology is not None:
            write_text(path, topology)
        elif result is not None:
            write_json(path, asdict(result))
    print(f"wrote {path}")
    if topology is not None:
        print(next_line("dlrm-plan", {"topology": path}, "tables=…", "model=…"))


def _measure(config: BenchConfig, runtime: Runtime, scratch: Path) -> BenchResult:
    if config.data.path is None:
        folder = scratch / "dataset"
        config = replace(config, data=replace(config.data, path=str(folder)))
        rows = max(MIN_ROWS, MIN_BATCHES * config.trainer.global_batch_size)
        runtime.together(lambda: write_inputs(config, folder, rows) if runtime.is_first else None)
    manifest, tables = open_dataset(config, runtime)
    with open_run_folder(str(scratch / "run"), "none", runtime) as run_folder:
        run, numbers = prepare(config, manifest, tables, run_folder, runtime), (config.warm_up, config.steps)
        measures: dict[str, Callable[[], Section]] = {
            "loader": lambda: measure_loader(run),
            "model": lambda: measure_model(run, *numbers),
            "step": lambda: measure_whole(run, *numbers),
        }
        sections = (measure() for name, measure in measures.items() if name in config.measure)
        return BenchResult(_describe(runtime), tuple(sections))


def _describe(runtime: Runtime) -> dict[str, str]:
    name, info = platform.machine(), Path("/proc/cpuinfo")
    if runtime.device.type == "cuda":
        name = torch.cuda.get_device_name(runtime.device)
    elif info.exists():
        models = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        name = models[0].split(": ", 1)[1] if models else name
    return {
        "device": f"{name}, {len(os.sched_getaffinity(0))} cores",
        "ranks": f"{runtime.world_size}, {runtime.num_threads} thread(s) each",
    }
