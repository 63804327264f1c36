"""The real scripts on a real Slurm of two nodes: jobs train, are warned, lose a node, and preprocess in an array.

All runs have the same two ranks and plan, so what was interrupted must end like what was not, to the bit.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dlrm_app.preprocessing.work.work_folder import WORK
from dlrm_app.stores.local import is_record
from tests.commands import wait_until
from tests.integration.test_kept_folders import names, objects
from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.running import AUTO, content, run
from tests.slurm.cluster import Cluster, send
from tests.small_run import SMALL, events, final_bytes

pytestmark = pytest.mark.long

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "slurm"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
PATIENCE = 300
"""Seconds, for a machine with much else to do."""
WISHES = [*SMALL, "trainer.epochs=8", "trainer.threads=1", "report.enabled=false", "output=run"]


def submit(cluster: Cluster, folder: Path, script: str, *arguments: str) -> int:
    """Submits a script as a user does whose environment is not active, to two nodes."""
    return cluster.submit(
        folder,
        "--nodes=2",
        f"--export=ALL,VENV={Path(sys.executable).parents[1]}",
        str(SCRIPTS / script),
        *arguments,
    )


def train(cluster: Cluster, folder: Path, dataset: Path, *overrides: str) -> int:
    return submit(cluster, folder, "train.sbatch", f"data.path={dataset}", *WISHES, *overrides)


def wait_for_end(cluster: Cluster, job: int, log: Path) -> None:
    """Waits; the job must have ended well."""
    wait_until(lambda: cluster.job(job)["JobState"] in ENDED, PATIENCE, f"job {job}")
    assert cluster.job(job)["JobState"] == "COMPLETED", log.read_text()[-5000:]


def wait_for_requeue(cluster: Cluster, job: int, log: Path, restarts: int = 1) -> None:
    def decided() -> bool:
        found = cluster.job(job)
        return found["Restarts"] == str(restarts) or found["JobState"] in ENDED

    wait_until(decided, PATIENCE, f"requeue of {job}")
    assert cluster.job(job)["Restarts"] == str(restarts), log.read_text()[-5000:]


def start_now(cluster: Cluster, job: int) -> None:
    """Cuts short the two minutes that Slurm keeps a requeued job waiting, once no node is busy clearing it away.

    Not to be used after a node was lost: once back, it gets messages about the job's first life, and ends the second.
    """
    wait_until(lambda: set(cluster.states()) == {"idle"}, PATIENCE, "idle nodes")
    time.sleep(5)  # nodes refuse what was granted up to the second in which the first life ended
    cluster.ask("scontrol", "update", f"JobId={job}", "StartTime=now")


def num_steps(run: Path) -> int:
    return len(events(run, "train")) if (run / "metrics.jsonl").exists() else 0


def assert_same_end(run: Path, undisturbed: Path) -> None:
    assert json.loads((run / "result.json").read_text())["world_size"] == 2
    assert events(run) == events(undisturbed)
    assert final_bytes(run) == final_bytes(undisturbed)


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a job of two nodes that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    job = train(cluster, folder, dataset)
    wait_for_end(cluster, job, folder / f"dlrm-train-{job}.log")
    return folder / "run"


def test_a_job_of_two_nodes_trains_with_a_rank_on_each(undisturbed: Path) -> None:
    """result.json tells of two ranks, the job's log is rank 0's, and rank 1 has one of its own."""
    result = json.loads((undisturbed / "result.json").read_text())
    assert result["world_size"] == 2
    assert result["steps"] == 8 * 31
    (job_log,) = undisturbed.parent.glob("dlrm-train-*.log")
    assert "248 steps" in job_log.read_text()
    assert [path.name for path in (undisturbed / "logs").iterdir()] == ["rank-1.log"]


@pytest.fixture(scope="module")
def unlucky(cluster: Cluster, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """A job, and its log, that has lost a rank, then the other node with all that runs there, by kill -9.

    Slurm now keeps it waiting for two minutes, in which other tests use the nodes.
    """
    folder = tmp_path_factory.mktemp("unlucky")
    job = train(cluster, folder, dataset, "checkpoint.every_steps=5")
    log, run = folder / f"dlrm-train-{job}.log", folder / "run"
    wait_until(lambda: any(run.glob("checkpoints/*/complete.json")), PATIENCE, "a checkpoint")
    send(cluster.rank_of("n2"), signal.SIGKILL)
    wait_for_requeue(cluster, job, log)
    assert "after a new checkpoint; back into the queue" in log.read_text()
    before = num_steps(run)
    start_now(cluster, job)
    wait_until(lambda: num_steps(run) > before + 10, PATIENCE, "more steps")
    cluster.kill_node("n2")
    wait_for_requeue(cluster, job, log, restarts=2)
    cluster.start_node("n2")
    wait_until(lambda: set(cluster.states()) == {"idle"}, PATIENCE, "the node's return")
    return job, log


def test_a_lost_rank_or_node_requeues_the_job(cluster: Cluster, unlucky: tuple[int, Path]) -> None:
    """The script requeues the job for the rank, Slurm for the node."""
    found = cluster.job(unlucky[0])
    assert (found["JobState"], found["Restarts"]) == ("PENDING", "2")


def test_a_warned_job_requeues_and_ends_like_an_undisturbed_one(
    cluster: Cluster, dataset: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """The signal that Slurm sends two minutes before the time limit makes the only checkpoint."""
    job = train(cluster, tmp_path, dataset, "checkpoint.every_epoch=false")
    log = tmp_path / f"dlrm-train-{job}.log"
    wait_until(lambda: num_steps(tmp_path / "run") > 5, PATIENCE, "the first steps")
    cluster.ask("scancel", "--signal=USR1", "--batch", str(job))
    wait_for_requeue(cluster, job, log)
    said = log.read_text()
    assert "stopped by SIGUSR1 after step" in said
    assert "ended by the warning before the time limit; back into the queue" in said
    assert len(list((tmp_path / "run/checkpoints").glob("step-*/complete.json"))) == 1
    assert not (tmp_path / "run/result.json").exists()
    start_now(cluster, job)
    wait_for_end(cluster, job, log)
    assert "resuming from" in log.read_text()
    assert_same_end(tmp_path / "run", undisturbed)


def test_a_cancelled_job_saves_itself_and_stays_cancelled(
    cluster: Cluster, dataset: Path, tmp_path: Path
) -> None:
    job = train(cluster, tmp_path, dataset, "checkpoint.every_epoch=false")
    wait_until(lambda: num_steps(tmp_path / "run") > 5, PATIENCE, "the first steps")
    cluster.ask("scancel", str(job))
    wait_until(lambda: cluster.ask("squeue", "-h", "-j", str(job)) == "", PATIENCE, f"end of {job}")
    assert (cluster.job(job)["JobState"], cluster.job(job)["Restarts"]) == ("CANCELLED", "0")
    assert len(list((tmp_path / "run/checkpoints").glob("step-*/complete.json"))) == 1


def test_a_job_that_can_never_succeed_is_not_requeued(cluster: Cluster, tmp_path: Path) -> None:
    job = train(cluster, tmp_path, tmp_path / "nowhere")
    wait_until(lambda: cluster.job(job)["JobState"] in ENDED, PATIENCE, f"job {job}")
    found = cluster.job(job)
    assert (found["JobState"], found["Restarts"]) == ("FAILED", "0")
    said = (tmp_path / f"dlrm-train-{job}.log").read_text()
    assert "nowhere" in said
    assert "before any new checkpoint: not requeued" in said


def test_a_job_array_preprocesses_a_log_in_each_task(cluster: Cluster, tmp_path: Path) -> None:
    """%a in an override is the number of the task; each dataset is that of the command by itself."""
    for day in (1, 2):
        (tmp_path / f"day_{day}.tsv").write_bytes(make_clicks(2000, seed=day))
    options = [
        "split.val=0.1",
        "split.test=0.1",
        "encoding=vocab",
        "layout.unit_mib=1",
        "encoding.crosses=null",
    ]
    options += [word for word in AUTO if word.startswith("dense.")]
    array = cluster.submit(
        tmp_path,
        "--array=1-2",
        f"--export=ALL,VENV={Path(sys.executable).parents[1]}",
        str(SCRIPTS / "preprocess.sbatch"),
        f"input.train={tmp_path}/day_%a.tsv",
        *options,
        "output=dataset_%a",
    )
    wait_until(lambda: cluster.ask("squeue", "-h", "-j", str(array)) == "", PATIENCE, f"job array {array}")
    logs = "\n".join(path.read_text() for path in tmp_path.glob("*.log"))
    for day in (1, 2):
        assert (tmp_path / f"dataset_{day}/manifest.json").exists(), logs[-5000:]
        run(tmp_path / "alone", f"input.train={tmp_path}/day_{day}.tsv", *options)
        assert content(tmp_path / f"dataset_{day}") == content(tmp_path / "alone")
        shutil.rmtree(tmp_path / "alone")


def test_tasks_of_srun_share_a_preprocessing(cluster: Cluster, tmp_path: Path) -> None:
    """Four tasks on two nodes, one of which is killed; the same command, with three, continues to the usual bytes."""
    options = options_for_clicks(tmp_path)
    words = [*options, f"output={tmp_path}/shared", "threads=1"]
    first = step(cluster, 4, words)
    journal = tmp_path / "shared" / WORK
    wait_until(lambda: len([*journal.glob("*/*.json")]) > 3, PATIENCE, "some units")
    send(cluster.task_of("3"), signal.SIGKILL)
    first.communicate(timeout=PATIENCE)
    assert first.returncode != 0
    assert not (tmp_path / "shared" / "manifest.json").exists()
    second = step(cluster, 3, words)
    out, error = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, error
    assert out.count("split ") == 1
    assert "3 ranks share the work" in error
    run(tmp_path / "alone", *options)
    assert content(tmp_path / "shared") == content(tmp_path / "alone")


def test_tasks_of_nodes_with_disks_of_their_own_share_a_preprocessing_into_a_store(
    cluster: Cluster, s3: Any, tmp_path: Path
) -> None:
    """One of three tasks is killed; two, on nodes whose disks are empty, continue to the usual bytes."""
    options = options_for_clicks(tmp_path)
    words = [*options, "output=s3://clicks/made", "threads=1"]
    first = step(cluster, 3, words, disks=tmp_path / "disks")
    wait_until(lambda: sum(map(is_record, names(s3, "made"))) > 3, PATIENCE, "some units")
    send(cluster.task_of("2"), signal.SIGKILL)
    first.communicate(timeout=PATIENCE)
    assert first.returncode != 0
    assert "manifest.json" not in names(s3, "made")
    second = step(cluster, 2, words, disks=tmp_path / "other disks")
    _, error = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, error
    assert "2 ranks share the work" in error
    run(tmp_path / "alone", *options)
    assert objects(s3, "made") == content(tmp_path / "alone")


def options_for_clicks(folder: Path) -> list[str]:
    """Of a log that this writes to ``folder``."""
    (folder / "log.tsv").write_bytes(make_clicks(40_000))
    options = ["split.val=0.1", "encoding=vocab", "encoding.crosses=null", "layout.unit_mib=1"]
    options += [word for word in AUTO if word.startswith("dense.")]
    return [f"input.train={folder}/log.tsv", *options]


def step(
    cluster: Cluster, num_tasks: int, words: Sequence[str], disks: Path | None = None
) -> "subprocess.Popen[str]":
    """Starts dlrm-preprocess as ``num_tasks`` tasks on two nodes, whose local folders are below ``disks``."""
    tasks = ["srun", "--nodes=2", f"--ntasks={num_tasks}", "--overcommit", "--kill-on-bad-exit=1"]
    program = [str(Path(sys.executable).with_name("dlrm-preprocess"))]
    if disks is not None:
        program = ["sh", "-c", f'DLRM_STORE_FOLDER="{disks}/$SLURM_NODEID" exec "$0" "$@"', *program]
    store = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    return subprocess.Popen(
        [*tasks, *program, *words],
        env={**cluster.environment, **store},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_job_with_losses_ends_like_an_undisturbed_one(
    cluster: Cluster, unlucky: tuple[int, Path], undisturbed: Path
) -> None:
    job, log = unlucky
    wait_for_end(cluster, job, log)
    assert_same_end(log.parent / "run", undisturbed)
