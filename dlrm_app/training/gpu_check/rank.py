"""A rank of the checks, started by torchrun: takes one job after another, and tells each one's end at once.

``rank.py JOBS.json RESULTS.jsonl``. A job: {"kind": run, syncs or speed, "name", "legs": lists of dlrm-train's settings}.
"""

import json
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

import torch

from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.errors import DlrmError
from dlrm_app.training.gpu_check.speed import measure_speed
from dlrm_app.training.train import train


def main() -> None:
    jobs = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for job in jobs:
        print(f"\n== {job['name']}", flush=True)
        started = time.perf_counter()
        result: dict[str, object] = {"name": job["name"]}
        try:
            result["facts"] = KINDS[job["kind"]](job["legs"])
        except DlrmError as error:
            result["fault"] = str(error)
        except Exception as error:
            if os.environ.get("WORLD_SIZE", "1") != "1":
                raise  # the other ranks wait for this one
            traceback.print_exc()
            result["fault"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
        result["seconds"] = time.perf_counter() - started
        if os.environ.get("RANK", "0") == "0":
            with Path(sys.argv[2]).open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
        sys.stdout.flush()


def _run(legs: list[list[str]]) -> dict[str, object]:
    for settings in legs:
        train(compose_config("train", TrainConfig, settings))
    return {}


def _count_syncs(legs: list[list[str]]) -> dict[str, object]:
    """How often a step waits for the GPU, by place: what the longer of two runs has more than the shorter, a step."""
    counts, steps = [], []
    for settings in legs:
        config = compose_config("train", TrainConfig, settings)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                train(config)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        lines = (
            f"{_short(each.filename)}:{each.lineno}"
            for each in caught
            if "synchronizing" in str(each.message)
        )
        counts.append(Counter(lines))
        steps.append(config.trainer.max_steps or 0)
    more = counts[1] - counts[0]
    return {"per_step": {line: count / (steps[1] - steps[0]) for line, count in more.most_common()}}


def _short(path: str) -> str:
    """From the library's name on."""
    return path.rpartition("site-packages/")[2]


KINDS = {"run": _run, "syncs": _count_syncs, "speed": measure_speed}


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # as the commands end: docs/adr/0007-ending-without-finalisation.md
