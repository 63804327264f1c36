"""Two machines, which are two network namespaces of this one: a rank on each, and a cable that can be cut."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import wait_until
from tests.integration.namespaces import ADDRESSES, Machines, two_namespaces
from tests.small_run import SMALL, events, final_bytes

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "torchrun_multinode.sh"
SETTINGS = [
    *SMALL,
    "trainer.epochs=24",
    "trainer.threads=1",
    "trainer.timeout_minutes=0.5",
    "report.enabled=false",
    "resume=auto",
    "output=run",
]


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with two_namespaces() as made:
        yield made


def start(machines: Machines, folder: Path, arguments: list[str]) -> list[subprocess.Popen[str]]:
    """The launcher on both, whose output goes to node-N.log."""
    return [_start_one(machines, node, folder, arguments) for node in (0, 1)]


def _start_one(machines: Machines, node: int, folder: Path, arguments: list[str]) -> subprocess.Popen[str]:
    place = {"NNODES": "2", "NODE_RANK": str(node), "MASTER_ADDR": ADDRESSES[0], "RANKS_PER_NODE": "1"}
    environment = {**os.environ, **place, "VENV": str(Path(sys.executable).parents[1])}
    with (folder / f"node-{node}.log").open("w") as log:
        return subprocess.Popen(
            [*machines.on(node), str(SCRIPT), *arguments],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            text=True,
        )


def run_to_end(machines: Machines, folder: Path, dataset: Path, *overrides: str) -> list[int]:
    """Exit codes of both launchers."""
    started = start(machines, folder, [f"data.path={dataset}", *SETTINGS, *overrides])
    return wait_for_both(started)


def wait_for_both(started: list[subprocess.Popen[str]]) -> list[int]:
    """Exit codes; whoever has not ended by himself within three minutes is killed, and the test fails."""
    deadline = time.monotonic() + 180
    try:
        return [process.wait(timeout=max(0.1, deadline - time.monotonic())) for process in started]
    finally:
        for process in started:
            process.kill()


def num_steps(run: Path) -> int:
    """The steps that a run has logged so far."""
    log = run / "metrics.jsonl"
    return log.read_text().count('"event": "train"') if log.exists() else 0


def logs(folder: Path) -> str:
    return "\n".join(path.read_text()[-3000:] for path in sorted(folder.glob("node-*.log")))


def test_a_run_cut_in_two_resumes_to_the_same_end(machines: Machines, dataset: Path, tmp_path: Path) -> None:
    """Each side notices after trainer.timeout_minutes; the same command then ends like an undisturbed run."""
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    assert run_to_end(machines, tmp_path / "whole", dataset) == [0, 0], logs(tmp_path / "whole")
    result = json.loads((tmp_path / "whole/run/result.json").read_text())
    assert (result["world_size"], result["steps"]) == (2, 744)

    cut = tmp_path / "cut"
    # cut well between two saves: while they save, ranks wait longer for each other than a step does
    every = ("checkpoint.every_steps=100", "checkpoint.every_epoch=false")
    started = start(machines, cut, [f"data.path={dataset}", *SETTINGS, *every])
    wait_until(lambda: num_steps(cut / "run") >= 105, 120, lambda: f"step 105: {logs(cut)}")
    machines.set_cable("down")
    try:
        assert wait_for_both(started) == [1, 1]
    finally:
        machines.set_cable("up")
    assert not (cut / "run/result.json").exists(), "the run had ended before the cable was cut"
    for node in (0, 1):
        assert f"rank {node} lost contact with another rank" in (cut / f"node-{node}.log").read_text()

    assert run_to_end(machines, cut, dataset, *every) == [0, 0], logs(cut)
    assert "resuming from" in (cut / "node-0.log").read_text()
    assert events(cut / "run") == events(tmp_path / "whole/run")
    assert final_bytes(cut / "run") == final_bytes(tmp_path / "whole/run")
