"""Jobs in processes of their own: one that crashes or hangs costs itself, and the others go on after it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SILENT_SECONDS = 180
"""How long a job may take, its process's start included."""
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Job:
    """See ``rank``."""

    kind: str
    name: str
    legs: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Result:
    """What came of a job: facts, or in ``fault`` why there are none."""

    name: str
    seconds: float
    facts: Mapping[str, Any] | None = None
    fault: str | None = None


Command = Callable[[Path, Path], list[str]]
"""(jobs, results) → what to start."""


def rank_command(ranks: int) -> Command:
    """The ranks of this machine: by torchrun if there are several."""
    module = "dlrm_app.training.gpu_check.rank"
    torchrun = (
        ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"] if ranks > 1 else []
    )
    return lambda jobs, results: [sys.executable, "-m", *torchrun, module, str(jobs), str(results)]


def run_jobs(
    jobs: Sequence[Job],
    command: Command,
    folder: Path,
    deadline: float,
    *,
    hide_gpus: bool = False,
    tell: Callable[[Result], None] = lambda result: None,
) -> dict[str, Result]:
    """The result of each job that was begun before ``deadline`` (time.monotonic), by name; logs go to ``folder``."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        **({"CUDA_VISIBLE_DEVICES": ""} if hide_gpus else {}),
    }
    results: dict[str, Result] = {}
    left = list(jobs)
    attempt = 0
    while left and time.monotonic() < deadline:
        attempt += 1
        log = folder / f"{'reference' if hide_gpus else 'ranks'}-{attempt}.log"
        done, fault = _launch(left, command, log, environment, deadline, tell)
        results.update({result.name: result for result in done})
        left = left[len(done) :]
        if fault is not None and left:  # the process ended within a job
            result = Result(left[0].name, 0.0, fault=fault)
            results[result.name] = result
            tell(result)
            left = left[1:]
    return results


def _launch(
    jobs: Sequence[Job],
    command: Command,
    log: Path,
    environment: Mapping[str, str],
    deadline: float,
    tell: Callable[[Result], None],
) -> tuple[list[Result], str | None]:
    """The results of the jobs that ended, and why the next did not; None: time is up, or there is no next."""
    given, answers = log.with_suffix(".jobs.json"), log.with_suffix(".results.jsonl")
    given.write_text(json.dumps([asdict(job) for job in jobs]), encoding="utf-8")
    answers.write_text("", encoding="utf-8")
    with log.open("wb") as out:
        process = subprocess.Popen(
            command(given, answers),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        fault: str | None = None
        results: list[Result] = []
        last = time.monotonic()
        try:
            while process.poll() is None and fault is None:
                if new := _read(answers)[len(results) :]:
                    results += new
                    last = time.monotonic()
                    for result in new:
                        tell(result)
                if time.monotonic() - last > SILENT_SECONDS:
                    fault = f"no answer within {SILENT_SECONDS} s, see {log.name}"
                if time.monotonic() > deadline:
                    return results, None
                time.sleep(POLL_SECONDS)
        finally:
            _end_group(process)
    for result in (new := _read(answers)[len(results) :]):
        tell(result)
    results += new
    if fault is None and process.returncode != 0:
        fault = f"{_last_error(log)} (exit code {process.returncode}, see {log.name})"
    if fault is None and len(results) < len(jobs):
        fault = f"the process ended without a word, see {log.name}"
    return results, fault


def _read(answers: Path) -> list[Result]:
    return [
        Result(**json.loads(line))
        for line in answers.read_text(encoding="utf-8").splitlines(True)
        if line[-1] == "\n"
    ]


def _last_error(log: Path) -> str:
    """The first line after the last job's heading that looks like an error."""
    text = log.read_text(encoding="utf-8", errors="replace").rpartition("\n== ")[2]
    signs = ("error (rank", "error:", "Error: ", "Error\n", "lost contact")
    lines = [line.strip() for line in text.splitlines() if any(sign in f"{line}\n" for sign in signs)]
    return lines[0][:300] if lines else "the process ended"


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):  # all have ended by themselves
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
