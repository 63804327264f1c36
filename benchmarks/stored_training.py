"""dlrm-train on a dataset in a store that stands in for S3, beside the same on a disk.

    python benchmarks/stored_training.py DATASET [--rounds 3] [--seconds 0.05] [--mb 100] [setting …]

Each round trains one epoch from the disk, from the store with an empty local folder, and from the store with the
folder that this left, and compares the seconds in training steps, the waits for rows included. The store waits
``--seconds`` before each answer, and sends ``--mb`` MB/s on each connection.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dlrm_app.table import text_table

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
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--mb", type=float, default=100.0)
    parser.add_argument("settings", nargs="*")
    given = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as name, store_of(given.dataset, given.seconds, given.mb) as port:
        for number in range(given.rounds):
            shutil.rmtree(Path(name, "stores"), ignore_errors=True)
            places = [str(given.dataset), "s3://bucket/dataset", "s3://bucket/dataset"]
            steps, whole = zip(
                *(train(Path(name), port, place, given.settings) for place in places), strict=True
            )
            table = [
                [str(number + 1), form, f"{step:.1f}", f"{steps[0] / step:.2f}", f"{wall:.1f}"]
                for form, step, wall in zip(FORMS, steps, whole, strict=True)
            ]
            print(text_table(TITLES, table), flush=True)


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


def train(folder: Path, port: int, dataset: str, settings: Sequence[str]) -> tuple[float, float]:
    """The seconds of the steps, and of the whole command."""
    environment = {
        **os.environ,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_SKIP_SIGNATURE": "true",
        "DLRM_STORE_FOLDER": str(folder / "stores"),
    }
    shutil.rmtree(folder / "run", ignore_errors=True)
    words = [*SETTINGS, f"data.path={dataset}", f"output={folder}/run", *settings]
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "dlrm_app.cli", "train", *words],
        env=environment,
        check=True,
        capture_output=True,
    )
    seconds = json.loads((folder / "run" / "result.json").read_text())["train_seconds"]
    return seconds, time.perf_counter() - began


if __name__ == "__main__":
    main()
