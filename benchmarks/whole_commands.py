"""Whole commands beside those of another checkout: python benchmarks/whole_commands.py LOG CHECKOUT [PAIRS [COMMANDS]]

LOG: lines of Criteo Kaggle's train.txt. Starts, preprocesses, trains and evaluates with each of the two at once, in turns
of a tenth of a second, so that both meet the same changes of the machine's speed, and prints the user and system time,
the elapsed time and the peak memory of this checkout over those of the other.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from dlrm_app.table import text_table

ROOT = Path(__file__).resolve().parents[1]
APP = "-m dlrm_app.cli"
COMMANDS = {
    "import": "-c __import__('dlrm_app')",
    "help": f"{APP} train --help",
    "preprocess": f"{APP} preprocess input.train={{log}} encoding=vocab encoding.min_count=10 split.val=0.1 "
    "output={place}/data",
    "first step": f"{APP} train data.path={{place}}/data tables=dataset trainer.max_steps=1 output={{place}}/step",
    "train": f"{APP} train data.path={{place}}/data tables=dataset tables.embedding_dim=16 trainer.epochs=1 "
    "trainer.global_batch_size=2048 output={place}/run",
    "evaluate": f"{APP} evaluate checkpoint={{place}}/run split=val output={{place}}/evaluated.json",
}
TIMES = {"import": 40, "help": 4}
"""How often a command of less than some slices is given within one turn's process; all others once."""
MADE = {"preprocess": "data", "first step": "step", "train": "run", "evaluate": "evaluated.json"}
SLICE = 0.1
"""Seconds of a turn: short beside the seconds for which a virtual machine is slow."""
Used = tuple[float, float, float]
"""User and system time; elapsed time, in turns of its own; the peak memory of its largest process, in MiB."""


class Turn:
    """A command that runs in its turns alone, with all its processes."""

    def __init__(self, tree: Path, command: str, place: Path, log: Path) -> None:
        self._command = command
        place.mkdir(exist_ok=True)
        subprocess.run(["rm", "-rf", str(place / MADE.get(command, "nothing"))], check=True)
        words = [sys.executable, *COMMANDS[command].format(log=log, place=place).split()]
        if command in TIMES:
            words = ["sh", "-ec", f'for each in $(seq {TIMES[command]}); do "$@"; done', "sh", *words]
        self._process = subprocess.Popen(
            words,
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.killpg(self._process.pid, signal.SIGSTOP)
        self._elapsed = 0.0
        self.used: Used | None = None

    def take(self) -> None:
        """Goes on for a slice, or to its end."""
        start = time.perf_counter()
        os.killpg(self._process.pid, signal.SIGCONT)
        try:
            while time.perf_counter() - start < SLICE and self.used is None:
                time.sleep(SLICE / 50)
                ended, status, usage = os.wait4(self._process.pid, os.WNOHANG)
                if ended:
                    self._process.returncode = os.waitstatus_to_exitcode(status)
                    self._elapsed += time.perf_counter() - start
                    self.used = (usage.ru_utime + usage.ru_stime, self._elapsed, usage.ru_maxrss / 1024)
                    if self._process.returncode:
                        raise SystemExit(f"{self._command}: exit code {self._process.returncode}")
        finally:
            if self.used is None:
                self._elapsed += time.perf_counter() - start
                os.killpg(self._process.pid, signal.SIGSTOP)


def in_turns(command: str, sides: Sequence[tuple[Path, Path]], log: Path) -> list[Used]:
    """What ``command`` uses of each side (a checkout and a folder of its own), both at once in turns of a slice."""
    running = [Turn(tree, command, place, log) for tree, place in sides]
    while any(turn.used is None for turn in running):
        for turn in running:
            if turn.used is None:
                turn.take()
    return [turn.used for turn in running if turn.used]


def ratios(pairs: Sequence[tuple[Used, Used]], kind: int) -> list[str]:
    """The median of the other's seconds or MiB, that of the ratios (their lowest and highest), and the ratio of the sums."""
    each = sorted(this[kind] / other[kind] for this, other in pairs)
    sums = sum(this[kind] for this, _ in pairs) / sum(other[kind] for _, other in pairs)
    shown = f"{median(each):.3f} ({each[0]:.3f} to {each[-1]:.3f})"
    return [f"{median(other[kind] for _, other in pairs):.2f}", shown, f"{sums:.3f}"]


def main(log: str, other: str, num_pairs: str = "7", *chosen: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sides = [(ROOT, Path(folder, "this")), (Path(other).resolve(), Path(folder, "other"))]
        for command in chosen or COMMANDS:
            in_turns(command, sides, Path(log).resolve())  # warm
            pairs = []
            for number in range(int(num_pairs)):
                pair = in_turns(command, sides[:: 1 - number % 2 * 2], Path(log).resolve())
                pairs.append((pair[number % 2], pair[1 - number % 2]))
            kinds = enumerate(("CPU, s", "elapsed, s", "memory, MiB"))
            rows = [[command * (not kind), name, *ratios(pairs, kind)] for kind, name in kinds]
            print(
                text_table(("command", "", "other", "ratio, median (range)", "of the sums"), rows), flush=True
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
