"""dlrm-train on a dataset in a store that stands in for S3, or saving to it, beside the same on a disk.

    python benchmarks/stored_training.py DATASET [--saves] [--rounds 3] [--seconds 0.05] [--mb 100] [setting …]

Each round trains one epoch from the disk, from the store with an empty local folder, and from the store with the folder
that this left, and compares the seconds in training steps, the waits for rows included. With ``--saves`` each round
trains from the disk, with checkpoints on the disk, then in the store, and also shows the seconds of the saves, which
those of the steps leave out, and the CPU time of the whole command. The store waits ``--seconds`` before each answer,
and sends ``--mb`` MB/s on each connection.
"""

import argparse
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dlrm_app.table import text_table

SAVES = ("disk", "store")
SAVE_TITLES = [
    "round",
    "to",
    "s in steps",
    "of the disk's",
    "saves",
    "MB each",
    "s in saves",
    "s of the command",
    "its CPU s",
]
FORMS = ("disk", "store, empty folder", "store, again")
TITLES = ["round", "from", "s in steps", "the rate of the disk's", "s of the command"]
SETTINGS = [
    "tables=dataset",
    "experiment=null",
    "trainer.epochs=1",
    "evaluation.test=false",
    "report.enabled=false",
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--saves", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--mb", type=float, default=100.0)
    parser.add_argument("settings", nargs="*")
    given = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as name, store_of(given.dataset, given.seconds, given.mb) as port:
        for number in range(given.rounds):
            shutil.rmtree(Path(name, "stores"), ignore_errors=True)
            compare = compare_saves if given.saves else compare_datasets
            print(compare(Path(name), port, given.dataset, given.settings, str(number + 1)), flush=True)


def compare_datasets(folder: Path, port: int, dataset: Path, settings: Sequence[str], number: str) -> str:
    """A table of trainings from the disk and from the store."""
    places = [str(dataset), "s3://bucket/dataset", "s3://bucket/dataset"]
    trained = [train(folder, port, place, f"{folder}/run", settings) for place in places]
    steps = trained[0].steps
    table = [
        [number, form, f"{each.steps:.1f}", f"{steps / each.steps:.2f}", f"{each.command:.1f}"]
        for form, each in zip(FORMS, trained, strict=True)
    ]
    return text_table(TITLES, table)


def compare_saves(folder: Path, port: int, dataset: Path, settings: Sequence[str], number: str) -> str:
    """A table of trainings that save to the disk and to the store."""
    outputs = [f"{folder}/run", f"s3://bucket/run{number}"]
    trained = [train(folder, port, str(dataset), output, settings) for output in outputs]
    steps = trained[0].steps
    table = [
        [
            *(number, form, f"{each.steps:.1f}", f"{each.steps / steps:.3f}", str(len(each.saves))),
            *(f"{each.megabytes:.0f}", f"{sum(each.saves):.1f}", f"{each.command:.1f}"),
            f"{each.cpu:.1f}",
        ]
        for form, each in zip(SAVES, trained, strict=True)
    ]
    return text_table(SAVE_TITLES, table)


@contextmanager
def store_of(dataset: Path, seconds: float, mb: float) -> Iterator[int]:
    """Serves ``dataset`` as s3://bucket/dataset; yields the port."""
    with tempfile.TemporaryDirectory() as name, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        shutil.copytree(dataset, Path(name) / "bucket" / "dataset", copy_function=os.link)
        script = Path(__file__).with_name("slow_store.py")
        server = subprocess.Popen([sys.executable, str(script), name, str(port), str(seconds), str(mb)])
        try:
            while socket.socket().connect_ex(("127.0.0.1", port)):
                time.sleep(0.1)
            yield port
        finally:
            server.terminate()
            server.wait()


@dataclass(frozen=True)
class Trained:
    """Seconds of all steps, of each save, of the whole command and of its CPUs; the size of the last checkpoint."""

    steps: float
    saves: list[float]
    command: float
    cpu: float
    megabytes: float


def train(folder: Path, port: int, dataset: str, output: str, settings: Sequence[str]) -> Trained:
    environment = {
        **os.environ,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_SKIP_SIGNATURE": "true",
        "DLRM_STORE_FOLDER": str(folder / "stores"),
    }
    place = (
        Path("stores", f"s3@127.0.0.1:{port}", output.partition("://")[2]) if "://" in output else Path("run")
    )
    run = folder / place
    shutil.rmtree(run, ignore_errors=True)
    words = [*SETTINGS, f"data.path={dataset}", f"output={output}", *settings]
    began, used = time.perf_counter(), cpu_seconds()
    done = subprocess.run(
        [sys.executable, "-m", "dlrm_app.cli", "train", *words],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    wall, cpu = time.perf_counter() - began, cpu_seconds() - used
    saves = [float(each) for each in re.findall(r"saved step-\d+ in ([\d.]+) s", done.stdout + done.stderr)]
    last = max((run / "checkpoints").glob("step-*"))
    size = sum(path.stat().st_size for path in last.glob("*.tensors")) / 1e6
    return Trained(json.loads((run / "result.json").read_text())["train_seconds"], saves, wall, cpu, size)


def cpu_seconds() -> float:
    """The CPU time of all programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
