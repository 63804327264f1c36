"""Run by torchrun: trains every case twice, once undisturbed and once stopped again and again.

torchrun --nproc-per-node 2 --max-restarts 20 resume_cases.py CASES.json FOLDER

A case: {"name", "overrides", "stops": [[step, signal, rank], …]}. After that step that rank sends that signal to
itself, once. SIGTERM ends the run in good order and the next one goes on in this process; SIGKILL ends the process,
and this program starts again from the launcher. Results: FOLDER/<name>/whole and FOLDER/<name>/cut.
"""

import json
import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch.distributed as dist

from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.launcher import handle_signals
from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.distributed.signals import Stopped
from dlrm_app.training import loop
from dlrm_app.training import train as job
from dlrm_app.training.state import TrainingRun
from tests.composed import compose_config

take_step = loop.take_step


def train(output: Path, overrides: list[str], stops: list[Any], runtime: Runtime) -> None:
    """Until the run has come to its end."""
    config = compose_config("train", TrainConfig, [*overrides, f"output={output}", "resume=auto"])

    def step_and_stop(run: TrainingRun, *others: Any) -> None:
        take_step(run, *others)
        for number, (step, name, rank) in enumerate(stops):
            mark = output.with_name(f"stopped-{number}")
            if run.progress.step == step and runtime.rank == rank and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.Signals[name])

    loop.take_step = step_and_stop
    while not (output / "result.json").is_file():
        try:
            job.train(config)
        except Stopped:
            print(f"{output} stopped", flush=True)
        dist.barrier()  # no rank looks for result.json before it is written


def main() -> None:
    cases, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    handle_signals()
    with start_runtime(1) as runtime:
        job.start_runtime = lambda *_, **__: nullcontext(runtime)
        for case in cases:
            (folder / case["name"]).mkdir(exist_ok=True)
            train(folder / case["name"] / "whole", case["overrides"], [], runtime)
            train(folder / case["name"] / "cut", case["overrides"], case["stops"], runtime)


if __name__ == "__main__":
    main()
    os._exit(0)  # as the commands end, see cli/launch.py
