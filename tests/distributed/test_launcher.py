"""Ranks end with the launcher that started them, other processes do not; a rank's exit code is the launcher's."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from dlrm_app.distributed.launcher import main
from tests.commands import children_of, command, is_alive, run, wait_until
from tests.loader.dataset_fixture import write_dataset
from tests.small_run import SMALL, events, train_here

RANK = "from dlrm_app.distributed.launcher import stop_with_launcher; stop_with_launcher()"
LAUNCHER = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", sys.argv[1] + "; print(flush=True); input()"]).pid, flush=True)
time.sleep(60)
"""


def wait_until_gone(pids: list[int], seconds: float) -> None:
    wait_until(lambda: not any(map(is_alive, pids)), seconds, "the ranks to end after their launcher")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")
@pytest.mark.parametrize("by_torchrun", [True, False])
def test_a_rank_ends_when_its_launcher_is_killed(by_torchrun: bool) -> None:
    environment = {**os.environ, **({"TORCHELASTIC_RUN_ID": "x"} if by_torchrun else {})}
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, RANK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as launcher:
        assert launcher.stdout
        started = int(launcher.stdout.readline())
        assert launcher.stdout.readline() == "\n"  # it is set up
        launcher.kill()
        launcher.wait()
        if by_torchrun:
            wait_until_gone([started], seconds=10)
        else:
            time.sleep(0.3)
            assert is_alive(started)
        # without a launcher nobody else ends it: its standard input does
    wait_until_gone([started], seconds=10)


@pytest.mark.long
@pytest.mark.parametrize("every_steps", [1000, 1])
def test_ranks_of_a_killed_torchrun_save_and_release_the_run(tmp_path: Path, every_steps: int) -> None:
    """In the middle of an epoch, and while every step is saved; resume=auto continues from there, to rounding."""
    write_dataset(tmp_path / "clicks", rows={"train": 4000, "val": 501})
    keys = [f"data.path={tmp_path / 'clicks'}", *SMALL, "trainer.epochs=200", f"output={tmp_path / 'run'}"]
    keys += [f"checkpoint.every_steps={every_steps}", "trainer.log_every_steps=1"]
    arguments = command("train", *keys, ranks=2)
    log = (tmp_path / "log.txt").open("w")
    with subprocess.Popen(arguments, cwd=tmp_path, stdout=log, stderr=log) as torchrun:
        ranks = wait_for_ranks(torchrun, tmp_path / "run" / "metrics.jsonl")
        torchrun.send_signal(signal.SIGKILL)
    wait_until_gone(ranks, seconds=20)
    said = (tmp_path / "log.txt").read_text()
    assert "resume=auto continues from there" in said
    steps = events(tmp_path / "run", "train")[-1]["step"]
    train_here(tmp_path / "run", *keys, f"trainer.max_steps={steps + 5}", "resume=auto")
    assert [each["step"] for each in events(tmp_path / "run", "train")] == [*range(1, steps + 6)]


def wait_for_ranks(torchrun: subprocess.Popen[bytes], log: Path) -> list[int]:
    """The two processes that torchrun has started, once they have taken a few steps."""
    wait_until(lambda: log.is_file() and log.read_bytes().count(b"\n") >= 7, 120, "a few steps")
    children = children_of(torchrun.pid)
    assert len(children) == 2
    return children


def test_a_rank_that_fails_has_the_last_word(tmp_path: Path) -> None:
    """The other rank waits, as ours do, and is ended without a word."""
    (tmp_path / "rank.py").write_text(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '1':\n    time.sleep(60)\n"
        "print('error: no', file=sys.stderr); sys.exit(2)\n"
    )
    start = [sys.executable, "-m", "dlrm_app.distributed.launcher", "--standalone", "--nproc-per-node=2"]
    done = run([*start, "rank.py"], tmp_path)
    assert (done.returncode, done.stderr) == (2, "error: no\n")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            ChildFailedError("rank.py", {3: ProcessFailure(0, 77, -9, "<N/A>")}),
            1,
            "rank 3 (pid 77) was ended by SIGKILL\n",
        ),
        (SignalException("", signal.SIGTERM), 143, ""),
    ],
)
def test_a_rank_or_a_launcher_that_was_ended_by_a_signal(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
    said: str,
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("torch.distributed.run.main", fail)
    assert main() == code
    assert capsys.readouterr().err == said
