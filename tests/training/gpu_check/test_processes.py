"""A job that crashes, hangs or fails is one row; the others are done all the same."""

import sys
import time
from pathlib import Path

import pytest

from dlrm_app.training.gpu_check import processes
from dlrm_app.training.gpu_check.processes import Job, run_jobs

WORKER = """
import json, os, sys, time
for job in json.load(open(sys.argv[1])):
    print("\\n== " + job["name"], flush=True)
    if job["kind"] == "crash":
        print("RuntimeError: CUDA error: an illegal memory access was encountered", flush=True)
        os.abort()
    if job["kind"] == "hang":
        time.sleep(600)
    if job["kind"] == "leave":
        os._exit(0)
    with open(sys.argv[2], "a") as file:
        file.write(json.dumps({"name": job["name"], "seconds": 0.5, "facts": {"kind": job["kind"]}}) + "\\n")
"""


def run(tmp_path: Path, *kinds: str, seconds: float = 60) -> dict[str, str]:
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    jobs = [Job(kind, f"{number} {kind}", []) for number, kind in enumerate(kinds)]
    told: list[str] = []
    results = run_jobs(
        jobs,
        lambda given, answers: [sys.executable, str(worker), str(given), str(answers)],
        tmp_path,
        time.monotonic() + seconds,
        tell=lambda result: told.append(result.name),
    )
    assert told == list(results)
    return {name: result.fault or "done" for name, result in results.items()}


def test_jobs_after_a_crash_are_done_in_a_new_process(tmp_path: Path) -> None:
    found = run(tmp_path, "run", "crash", "run", "leave", "run")
    assert list(found) == ["0 run", "1 crash", "2 run", "3 leave", "4 run"]
    assert found["1 crash"].startswith(
        "RuntimeError: CUDA error: an illegal memory access was encountered (exit"
    )
    assert "ended without a word" in found["3 leave"]
    assert [found[name] for name in ("0 run", "2 run", "4 run")] == ["done"] * 3


def test_a_hang_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SILENT_SECONDS", 1)
    found = run(tmp_path, "hang", "run")
    assert found["0 hang"].startswith("no answer within 1 s")
    assert found["1 run"] == "done"


def test_what_is_not_begun_in_time_is_left_out(tmp_path: Path) -> None:
    assert run(tmp_path, "run", "hang", "run", seconds=1.5) == {"0 run": "done"}
