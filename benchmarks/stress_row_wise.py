"""Whole dlrm-train runs, row-wise over gloo, one after another: how many die?

python benchmarks/stress_row_wise.py --ranks 2 --runs 100

Each run is torchrun with the installed module on a tiny dataset: two epochs, evaluations, a checkpoint, the test
split. A run counts as dead if torchrun's exit code is not 0 or result.json is missing; its last words are printed.

--fork spares each rank the import of its libraries, most of a tiny run's CPU time: ranks are forks of a process that has
them loaded, and run the command from its arguments to its exit code. A run then counts as dead if any rank ends by a
signal or with another code than 0.
"""

import argparse
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dlrm_app.cli.train
import dlrm_app.training.train  # loads torch, torchrec and fbgemm for all forks
from tests.loader.dataset_fixture import write_dataset

SMALL = [
    "tables.embedding_dim=8",
    "model.bottom_mlp=[16]",
    "model.top_mlp=[16]",
    "trainer.global_batch_size=128",
    "trainer.epochs=2",
    "data.lanes=8",
    "evaluation.batch_size=64",
    "report.enabled=false",
]


def launched_run(arguments: list[str], output: Path, num_ranks: int) -> str | None:
    """None, or how the run died."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    command = [sys.executable, *launch, "-m", "dlrm_app.cli.train", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=600, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return "still running after 10 minutes"
    if done.returncode == 0 and (output / "result.json").is_file():
        return None
    return f"exit code {done.returncode}\n{done.stderr[-2000:]}"


def forked_run(arguments: list[str], output: Path, num_ranks: int) -> str | None:
    """None, or how the run died. A rank that hangs is ended after 10 minutes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    output.mkdir()
    ranks = [fork_rank(arguments, output, rank, num_ranks, port) for rank in range(num_ranks)]
    ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    if not any(ends) and (output / "result.json").is_file():
        return None
    logs = [(output / f"rank{rank}.log").read_text()[-1000:] for rank in range(num_ranks)]
    return "\n".join([f"exit codes {ends} (-6: SIGABRT)", *logs])


def fork_rank(arguments: list[str], output: Path, rank: int, num_ranks: int, port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks}
    os.environ.update({key: str(value) for key, value in variables.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    log = os.open(output / f"rank{rank}.log", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.alarm(600)
    sys.argv = ["dlrm-train", *arguments]
    dlrm_app.cli.train.main()
    os._exit(99)  # main leaves by itself


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--types", default="row_wise")
    parser.add_argument("--fork", action="store_true")
    options = parser.parse_args()
    take_run = forked_run if options.fork else launched_run
    deaths = 0
    with tempfile.TemporaryDirectory() as scratch:
        dataset = Path(scratch) / "dataset"
        write_dataset(dataset, rows={"train": 1500, "val": 333, "test": 335})
        started = time.monotonic()
        for number in range(1, options.runs + 1):
            output = Path(scratch) / f"run{number}"
            overrides = [f"data.path={dataset}", f"output={output}", f"sharding.types=[{options.types}]"]
            if words := take_run([*SMALL, *overrides], output, options.ranks):
                deaths += 1
                print(f"run {number} died: {words}", flush=True)
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            print(
                f"{options.types}, {options.ranks} ranks: {number} of {options.runs} runs, {deaths} died; "
                f"{time.monotonic() - started:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of CPU time",
                flush=True,
            )
    sys.exit(1 if deaths else 0)


if __name__ == "__main__":
    main()
