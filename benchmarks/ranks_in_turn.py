"""Steps of one rank with every core beside those of two ranks that share them, in turn within seconds.

    python benchmarks/ranks_in_turn.py
    python benchmarks/ranks_in_turn.py --before CHECKOUT --turns 20      # and of another state of this project

A machine's speed moves by a fifth within minutes, so runs one after the other tell little. Here all runs stay alive, and all but
one are stopped (SIGSTOP) at any moment; each gets its turn for a moment, in another order each time. Ratios are of
neighbouring turns. The model and the rows are those of train.py's `small`.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from train import MODELS, Work, make_data, on_two_ranks, ours

WARM_STEPS, LOGGED_EVERY, SETTLING = 15, 5, 0.25
"""Steps before the first turn; steps a line of the log; seconds of a turn that do not count."""
HERE = Path(__file__).resolve().parents[1]


@dataclass
class Run:
    """A training that is stopped unless it is its turn."""

    name: str
    folder: Path
    process: subprocess.Popen[bytes]
    step_ms: list[float] = field(default_factory=list)
    """Of each turn, the median."""

    def lines(self) -> list[dict[str, Any]]:
        path = self.folder / "metrics.jsonl"
        events = map(json.loads, path.read_text().splitlines()) if path.exists() else []
        return [event for event in events if event["event"] == "train"]

    def send(self, number: signal.Signals) -> None:
        """To the ranks, and to torchrun, which starts them in sessions of their own."""
        listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True)
        pairs = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
        family = [self.process.pid]
        for parent in family:
            family += [child for child, its_parent in pairs if its_parent == parent]
        for process in reversed(family):
            os.kill(process, number)

    def take_turn(self, seconds: float) -> None:
        begins = time.time()
        self.send(signal.SIGCONT)
        time.sleep(seconds)
        self.send(signal.SIGSTOP)
        lines = [line for line in self.lines() if begins + SETTLING < line["time"]]
        paces = [
            1e3 * (after["time"] - before["time"]) / (after["step"] - before["step"])
            for before, after in pairwise(lines)
            if after["epoch"] == before["epoch"]
        ]
        self.step_ms.append(statistics.median(paces) if paces else float("nan"))


def start(name: str, checkout: Path, is_two: bool, work: Work, folder: Path) -> Run:
    """Stopped once it has warmed up; ends the program if it fails."""
    keys = [f"trainer.log_every_steps={LOGGED_EVERY}", "trainer.epochs=1000", "report.enabled=false"]
    engine = ours("rowwise_adagrad", *keys, "checkpoint.every_epoch=false", f"output={folder}")
    command = (on_two_ranks(engine) if is_two else engine)(work)
    command = [
        word for word in command if not word.startswith(("trainer.max_steps", "trainer.log_every_steps=10"))
    ]
    command.remove(f"output={work.folder / 'run'}")
    log = folder.with_suffix(".log")
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=work.folder, env=environment, stdout=file, stderr=subprocess.STDOUT
        )
    run = Run(name, folder, process)
    while not any(line["step"] >= WARM_STEPS for line in run.lines()):
        if process.poll() is not None:
            sys.exit(f"{name} failed:\n{log.read_text()[-3000:]}")
        time.sleep(0.2)
    run.send(signal.SIGSTOP)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="another checkout, whose runs take turns too")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.5, help="of a turn")
    options = parser.parse_args()
    checkouts = {"": HERE, **({", before": options.before.resolve()} if options.before else {})}
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="ranks-benchmark-") as temporary:
        folder = Path(temporary)
        work = Work(MODELS["small"], 2048, 60, folder, {})
        make_data(work)
        shutil.rmtree(folder / "npy")
        try:
            for suffix, checkout in checkouts.items():
                for number, is_two in enumerate([False, True]):
                    name = f"{'two ranks' if is_two else 'one rank'}{suffix}"
                    runs.append(start(name, checkout, is_two, work, folder / f"run{number}{len(runs)}"))
            for turn in range(options.turns):
                first = turn % len(runs)
                for run in runs[first:] + runs[:first]:
                    run.take_turn(options.seconds)
        finally:
            for run in runs:
                run.send(signal.SIGKILL)
    for run in runs:
        ratios = [own / first for own, first in zip(run.step_ms, runs[0].step_ms, strict=True)]
        ratios = sorted(ratio for ratio in ratios if ratio == ratio)
        quarter = len(ratios) // 4
        print(
            f"{run.name}: {statistics.median(run.step_ms):.1f} ms a step, {statistics.median(ratios):.3f} times the first's "
            f"({ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f}, the middle half of {len(ratios)} turns)"
        )


if __name__ == "__main__":
    main()
