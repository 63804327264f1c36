"""A trial: a dlrm-train process, its run folder, and its curve on val, read while it trains."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlrm_app.distributed.launcher import LAUNCHED, RESUMABLE
from dlrm_app.runs.checkpoint.marker import Evaluation
from dlrm_app.runs.events import read_events

POLL_SECONDS = 0.5
GRACE_SECONDS = 60
"""For a run that is told to stop, to save itself."""
STOPPED = (RESUMABLE, 130, 143, -signal.SIGINT, -signal.SIGTERM)
"""Exit codes of a training that a signal ended, as Ctrl-C does in every process of a terminal: it can go on."""
UNSEEN = "evaluation.test=false"
"""A choice by val is made without a look at test."""
TRAIN = (sys.executable, "-m", "dlrm_app.cli.train")


@dataclass(frozen=True)
class Outcome:
    """``values``: the metric at every evaluation on val; ``was_given_up``: before its end; ``error``: why it failed."""

    values: list[float]
    was_given_up: bool = False
    error: str | None = None


def run_trial(
    folder: Path,
    settings: Sequence[str],
    metric: str,
    goes_on: Callable[[int, float], bool],
    is_stopped: Callable[[], bool] = lambda: False,
    train: Sequence[str] = TRAIN,
) -> Outcome:
    """Trains with ``settings`` in ``folder``, from its newest checkpoint if it has one.

    ``goes_on(number, value)``: asked at every evaluation, of which the first is 0; False gives the run up.
    ``is_stopped()``: whether to leave it, to be gone on with later. Raises KeyboardInterrupt if a signal ended it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    words = [*train, *settings, f'output="{folder.absolute()}"', "resume=auto", UNSEEN]
    log = folder.with_suffix(".log")
    with log.open("a", encoding="utf-8") as output:
        environment = {**os.environ, LAUNCHED: "1"}
        process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            was_given_up = _watch(process, folder, metric, goes_on, is_stopped)
        finally:
            _stop(process)
    values = curve(folder, metric)
    if was_given_up or process.returncode == 0:
        return Outcome(values, was_given_up)
    if process.returncode in STOPPED:
        raise KeyboardInterrupt
    return Outcome(values, error=_last_error(log))


def _watch(
    process: "subprocess.Popen[bytes]",
    folder: Path,
    metric: str,
    goes_on: Callable[[int, float], bool],
    is_stopped: Callable[[], bool],
) -> bool:
    """Waits for the process's end; True if ``goes_on`` said no, or all is stopped, before."""
    told = 0
    while True:
        has_ended = process.poll() is not None
        values = curve(folder, metric)
        for number in range(told, len(values)):
            if not goes_on(number, values[number]) and not has_ended:
                return True
        told = len(values)
        if has_ended or is_stopped():
            return not has_ended
        time.sleep(POLL_SECONDS)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Ends the process, which may save itself before."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def curve(folder: Path, metric: str) -> list[float]:
    """The metric at every evaluation on val that is in the run's metrics so far. Raises DataError if they are damaged."""
    evaluations = (event for event in read_events(folder) if isinstance(event, Evaluation))
    return [event.metrics[metric] for event in evaluations if event.split == "val"]


def _last_error(log: Path) -> str:
    """What the process said last, from ``error:`` on."""
    text = log.read_text(encoding="utf-8", errors="replace").rstrip()
    start = text.rfind("error")
    return text[start:][:500] if start >= 0 else text[-500:] or f"no word; see {log}"
