"""One command with the code of two checkouts, in turn: how much longer, or shorter, it takes with the second.

    git worktree add ../before v0.1.0
    python benchmarks/two_checkouts.py ../before . -m dlrm_app.cli.preprocess dataset=criteo_kaggle \
        input.train=clicks.tsv output={scratch}/dataset

The arguments after the checkouts are Python's. ``{scratch}`` stands for an empty folder, a new one for each run;
``{checkout}`` for the checkout. Prints each pair and the medians of wall clock and of CPU seconds. A first run of each
is not counted: it compiles.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAIRS = int(os.environ.get("PAIRS", "7"))


def run(checkout: Path, arguments: list[str]) -> tuple[float, float]:
    """(seconds by the clock, CPU seconds of all its processes); ends the program if the command fails."""
    with tempfile.TemporaryDirectory() as scratch:
        filled = [a.replace("{scratch}", scratch).replace("{checkout}", str(checkout)) for a in arguments]
        before, start = cpu_seconds(), time.perf_counter()
        done = subprocess.run(
            [sys.executable, *filled],
            env={**os.environ, "PYTHONPATH": str(checkout)},
            capture_output=True,
            text=True,
        )
        seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"with {checkout} the command failed:\n{done.stderr[-2000:]}")
    return seconds, cpu_seconds() - before


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    checkouts = [Path(argument).resolve() for argument in sys.argv[1:3]]
    arguments = sys.argv[3:]
    for checkout in checkouts:
        run(checkout, arguments)
    ratios = []
    for pair in range(PAIRS):
        (wall_a, cpu_a), (wall_b, cpu_b) = (run(checkout, arguments) for checkout in checkouts)
        ratios.append((wall_b / wall_a, cpu_b / cpu_a))
        print(
            f"pair {pair + 1}: {wall_a:.2f} s, {wall_b:.2f} s; CPU {cpu_a:.2f} s, {cpu_b:.2f} s", flush=True
        )
    for name, values in zip(("wall", "CPU"), zip(*ratios, strict=True), strict=True):
        print(
            f"{name}: second / first {statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"
        )


if __name__ == "__main__":
    main()
