"""dlrm-bench: start, loader, model, whole step, evaluation and checkpoint, each alone, beside what this machine could do."""

import logging
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import torch

from dlrm_app.bench.beside_steps import measure_checkpoint, measure_evaluation, measure_loader
from dlrm_app.bench.inputs import write_bench_inputs
from dlrm_app.bench.result import BenchResult, Section
from dlrm_app.bench.start import Start
from dlrm_app.bench.step import measure_model, measure_whole, take_first_step
from dlrm_app.config.bench import BenchConfig
from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.distributed.scratch import scratch_folder
from dlrm_app.files import explained_disk_errors, write_json, write_text
from dlrm_app.reports.bench import bench_page, bench_text
from dlrm_app.runs.folder import open_run_folder
from dlrm_app.sharding.estimate.machine import Machine
from dlrm_app.sharding.estimate.measure import measure_machine
from dlrm_app.sharding.estimate.work import step_work
from dlrm_app.training.run import TrainingRun
from dlrm_app.training.setup import open_dataset
from dlrm_app.training.speed.shape import step_shape
from dlrm_app.training.train import prepare

logger = logging.getLogger(__name__)
FORWARD = ("input_dist", "lookup", "output_dist", "mlps", "interaction")


def bench(config: BenchConfig, start: Start | None = None) -> BenchResult:
    """Measures what ``config.measure`` names, prints it, and writes bench.json and bench.html if ``output`` is given.

    ``start``: what the command took before; None: Python began with this. Raises DlrmError for what a user can mend.
    """
    start = start or Start()
    trainer = config.trainer
    timeout = timedelta(minutes=trainer.timeout_minutes)
    with start_runtime(trainer.threads, numa=trainer.numa, timeout=timeout) as runtime:
        start.mark("ranks")
        with scratch_folder(runtime, "dlrm-bench-") as scratch:
            if config.data.path is None:
                runtime.together(lambda: write_bench_inputs(config, scratch) if runtime.is_first else None)
                config = replace(config, data=replace(config.data, path=str(scratch / "dataset")))
                start.mark("synthetic rows")
            manifest, tables = runtime.together(lambda: open_dataset(config, runtime))
            start.mark("dataset")
            with open_run_folder(str(scratch / "run"), "none", runtime) as folder:
                run = prepare(config, manifest, tables, folder, runtime)
                start.mark("plan and model")
                if "start" in config.measure:
                    take_first_step(run)
                    start.mark("first batches and step")
                machine = measure_machine(runtime)  # once TF32 is chosen, or is not
                result = BenchResult(
                    _describe(machine, runtime), tuple(_sections(run, config, machine, start))
                )
        if runtime.is_first:
            print(f"\n{bench_text(result)}")
            _write(config, result)
    return result


def _sections(run: TrainingRun, config: BenchConfig, machine: Machine, start: Start) -> Iterator[Section]:
    work = step_work(step_shape(run.config, run.trainable.plan, run.trainable.model.module))
    floors = machine.floors_ms(work, run.config.trainer.precision)
    if "start" in config.measure:
        yield start.section()
    if "loader" in config.measure:
        yield measure_loader(run)
    if "model" in config.measure:
        yield measure_model(run, floors, config.warm_up, config.steps)
    if "step" in config.measure:
        yield measure_whole(run, floors, config.warm_up, config.steps)
    if "evaluation" in config.measure:
        in_fp32 = machine.floors_ms(work, "fp32")
        yield measure_evaluation(run, sum(in_fp32[part] for part in FORWARD))
    if "checkpoint" in config.measure:
        yield measure_checkpoint(run, run.folder.path)


def _describe(machine: Machine, runtime: Runtime) -> dict[str, str]:
    info = Path("/proc/cpuinfo")
    names = (
        [line for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    name = names[0].split(": ", 1)[1] if names else platform.machine()
    if runtime.device.type == "cuda":
        name = torch.cuda.get_device_name(runtime.device)
    described = {
        "device": f"{name}, {len(os.sched_getaffinity(0))} cores",
        "ranks": f"{runtime.world_size}, {runtime.num_threads} thread(s) each",
        "matrix products": ", ".join(
            f"{kind} {rate / 1e9:,.0f} GFLOP/s" for kind, rate in machine.flops.items()
        ),
        "memory, copied": f"{machine.memory / 1e9:,.1f} GB/s read and written",
    }
    if runtime.world_size > 1:
        described["exchange"] = f"{machine.exchange / 1e9:,.2f} GB/s sent by each rank"
    return described


def _write(config: BenchConfig, result: BenchResult) -> None:
    if config.output is None:
        print("\nnext: add output=FOLDER for bench.json and a page with bars")
        return
    folder = Path(config.output)
    with explained_disk_errors(folder, "then measure again"):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "bench.json", asdict(result))
        write_text(folder / "bench.html", bench_page(result, folder.absolute().name, asdict(config)))
    print(f"\nwrote {folder / 'bench.json'} and {folder / 'bench.html'}")
