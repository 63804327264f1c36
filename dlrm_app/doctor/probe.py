"""Tries something in a process of its own, so that a crash, a hang or an undefined symbol is an answer, not an end."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROBES = Path(__file__).resolve().parent / "probes"


@dataclass(frozen=True)
class Answer:
    """What a probe printed as JSON on its last line, or in ``fault`` why it did not come to that."""

    facts: dict[str, Any]
    fault: str | None = None


def probe(name: str, *arguments: str, timeout: float) -> Answer:
    """Runs probes/<name>.py with this Python; it gets ``timeout`` seconds."""
    process = subprocess.Popen(
        [sys.executable, str(PROBES / f"{name}.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,  # so that a hanging probe ends together with the processes it started
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return Answer({}, f"no answer within {timeout:g} s")
    finally:
        _end_group(process)
    if process.returncode != 0:
        return Answer({}, _describe(process.returncode, errors))
    try:
        return Answer(json.loads(output.strip().splitlines()[-1]))
    except (ValueError, IndexError):
        return Answer({}, f"an unreadable answer: {output[-200:]!r}")


def _end_group(process: "subprocess.Popen[str]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # the usual case: all have ended by themselves
    process.wait()


def _describe(code: int, errors: str) -> str:
    if code < 0:
        return f"crashed with {signal.Signals(-code).name}"
    raised = re.findall(r"^[\w.]*(?:Error|Exception): .*", errors, re.MULTILINE)
    lines = raised or errors.strip().splitlines() or ["no message"]
    return lines[0 if raised else -1][:300]  # of errors raised from one another the first is the cause
