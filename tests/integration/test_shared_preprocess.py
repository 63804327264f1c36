"""dlrm-preprocess as launchers start it: torchrun, srun's variables, an Indexed Job; ranks killed by kill -9."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.commands import command, run, succeed, torchrun
from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.running import content

pytestmark = pytest.mark.long

PREPROCESS = [sys.executable, "-m", "dlrm_app.cli", "preprocess"]
GIVEN = ["input.train=log.tsv", "split.val=0.1", "split.test=0.1", "layout.unit_mib=1", "threads=1"]
GIVEN += ["shuffle=full", "layout.shuffled_shard_rows=5000", "rejects.max_fraction=0.01"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log, and the dataset ``whole`` that one process makes of it."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "log.tsv").write_bytes(make_clicks(60_000, bad_every=5000))
    succeed([*PREPROCESS, *GIVEN, "output=whole"], folder)
    return folder


def start(folder: Path, *words: str, **variables: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, **variables}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*PREPROCESS, *GIVEN, *words], cwd=folder, env=environment, text=True, **pipes)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_torchrun_shares_the_work(folder: Path, num_ranks: int) -> None:
    """The result is printed once, and again when all is done already."""
    output = f"output=torchrun-{num_ranks}"
    done = succeed(command("preprocess", *GIVEN, output, ranks=num_ranks), folder)
    assert content(folder / f"torchrun-{num_ranks}") == content(folder / "whole")
    assert f"{num_ranks} ranks share the work, 1 thread(s) each" in done.stderr
    assert done.stdout.count("best reachable") == done.stdout.count("split ") - 1 == 0
    again = succeed(command("preprocess", *GIVEN, output, ranks=num_ranks), folder)
    assert again.stderr.count("is finished already") == 1


def test_an_error_is_printed_once(folder: Path) -> None:
    """With its exit code, where the launcher passes it on; nothing is left behind."""
    launcher = [sys.executable, "-m", "dlrm_app.distributed.launcher", *torchrun(2)[3:]]
    failed = run(
        [*launcher, "-m", "dlrm_app.cli", "preprocess", *GIVEN, "dataset=example_csv", "output=bad"], folder
    )
    assert failed.returncode == 2
    assert failed.stderr.count("problem in the configuration") == 1
    assert not (folder / "bad").exists()


def test_pods_of_an_indexed_job_share_the_work(folder: Path) -> None:
    """Each prints the result in its own log."""
    pods = [start(folder, "ranks=2", "output=pods", JOB_COMPLETION_INDEX=str(index)) for index in range(2)]
    for pod in pods:
        out, error = pod.communicate(timeout=300)
        assert pod.returncode == 0, error
        assert out.startswith("split ")
    assert content(folder / "pods") == content(folder / "whole")
    lone = start(folder, "output=pods", JOB_COMPLETION_INDEX="1")
    assert "JOB_COMPLETION_INDEX=1 says that this is one pod of several" in lone.communicate(timeout=100)[1]
    assert lone.returncode == 2


def test_tasks_of_srun_share_the_work(folder: Path) -> None:
    """The first prints the result."""
    tasks = [
        start(folder, "output=tasks", SLURM_PROCID=str(number), SLURM_STEP_NUM_TASKS="2")
        for number in range(2)
    ]
    printed = [task.communicate(timeout=300)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0]
    assert [text.count("split ") for text in printed] == [1, 0]
    assert content(folder / "tasks") == content(folder / "whole")


def test_ranks_killed_at_random_moments_change_nothing(folder: Path) -> None:
    """One by one, rank 0 too, then all of them, which continue with another number."""
    draw, kills = random.Random(0), 0

    def begin(rank: int, num_ranks: int) -> "subprocess.Popen[str]":
        return start(folder, "output=killed", RANK=str(rank), WORLD_SIZE=str(num_ranks))

    for num_ranks in (3, 2, 4, 3, 2):
        ranks = [begin(rank, num_ranks) for rank in range(num_ranks)]
        for _ in range(4):
            time.sleep(draw.uniform(1, 6))
            victim = draw.randrange(num_ranks)
            if ranks[victim].poll() is None:
                ranks[victim].send_signal(signal.SIGKILL)
                ranks[victim].communicate()
                kills += 1
                ranks[victim] = begin(victim, num_ranks)
        for rank in ranks:
            rank.kill()
            rank.communicate()
    last = [begin(rank, 3) for rank in range(3)]
    errors = [rank.communicate(timeout=400)[1] for rank in last]
    assert [rank.returncode for rank in last] == [0, 0, 0], errors
    assert kills > 5
    assert content(folder / "killed") == content(folder / "whole")
