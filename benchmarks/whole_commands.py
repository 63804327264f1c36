"""Whole commands beside those of another checkout: python benchmarks/whole_commands.py LOG CHECKOUT [PAIRS]

LOG: lines of Criteo Kaggle's train.txt. Preprocesses, trains and evaluates with each of the two in turn, and prints
the user and system time and the elapsed time of this checkout over those of the other.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from dlrm_app.table import text_table

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = {
    "preprocess": "input.train={log} encoding=vocab encoding.min_count=10 split.val=0.1 output={place}/data",
    "train": "data.path={place}/data tables=dataset tables.embedding_dim=16 trainer.epochs=1 "
    "trainer.global_batch_size=2048 output={place}/run",
    "evaluate": "checkpoint={place}/run split=val output={place}/evaluated.json",
}
MADE = {"preprocess": "data", "train": "run", "evaluate": "evaluated.json"}
Seconds = tuple[float, float]
"""User and system time; elapsed time."""


def measure(tree: Path, command: str, words: Sequence[str]) -> Seconds:
    """Runs ``command`` of the checkout ``tree``."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    typed = [sys.executable, "-m", "dlrm_app.cli", command, *words]
    subprocess.run(typed, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(tree)})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, time.perf_counter() - start


def timed(tree: Path, command: str, log: Path, place: Path) -> Seconds:
    place.mkdir(exist_ok=True)
    subprocess.run(["rm", "-rf", str(place / MADE[command])], check=True)
    return measure(tree, command, COMMANDS[command].format(log=log, place=place).split())


def ratios(pairs: Sequence[tuple[Seconds, Seconds]], kind: int) -> list[str]:
    """The median of (this, other) in seconds, that of the ratios, the lowest and the highest, and that of the least."""
    each = sorted(this[kind] / other[kind] for this, other in pairs)
    least = min(this[kind] for this, _ in pairs) / min(other[kind] for _, other in pairs)
    shown = f"{median(each):.3f} ({each[0]:.3f} to {each[-1]:.3f})"
    return [f"{median(other[kind] for _, other in pairs):.2f}", shown, f"{least:.3f}"]


def main(log: str, other: str, num_pairs: str = "7") -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        sides = [(ROOT, Path(folder, "this")), (Path(other).resolve(), Path(folder, "other"))]
        for command in COMMANDS:
            for tree, place in sides:  # warm
                timed(tree, command, Path(log).resolve(), place)
            pairs = []
            for number in range(int(num_pairs)):
                order = sides if number % 2 else sides[::-1]
                found = {tree: timed(tree, command, Path(log).resolve(), place) for tree, place in order}
                pairs.append((found[ROOT], found[sides[1][0]]))
            rows += [[command, "CPU", *ratios(pairs, 0)], ["", "elapsed", *ratios(pairs, 1)]]
            print(
                text_table(("command", "", "s, other", "ratio, median (range)", "of the least"), rows[-2:]),
                flush=True,
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
