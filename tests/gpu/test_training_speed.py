"""The speed of training and of the loader, by the benchmarks.

`make gpu-check` runs it last and alone, because other work would slow it.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.conftest import ON_GPU, RANKS, SECONDS, Note

pytestmark = pytest.mark.gpu
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
TRAIN = ["--rounds", "1", "--engines", "adagrad,adagrad_tf32,adagrad_bf16", "--steps", "60", "--model"]


def said_by(*command: str) -> str:
    """What ``python *command`` prints."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=3 * SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_training_from_disk_by_precision(record_property: Note) -> None:
    """With tables of the size of Criteo's; on the CPU small ones, to try it."""
    model, batch = ("kaggle", 16_384) if ON_GPU else ("small", 256)
    sizes = ["--ranks", f"{RANKS}", "--batch", f"{batch * RANKS}"]
    table = said_by(str(BENCHMARKS / "train.py"), *TRAIN, model, *sizes)
    speeds = re.findall(r"^\| (adagrad\w*) \| ([\d,]+) \| ", table, re.M)
    assert len(speeds) == 3
    for engine, speed in speeds:
        record_property(engine, f"{speed} samples/s")


def test_the_loader_alone(tmp_path: Path, record_property: Note) -> None:
    rows = 2_000_000 if ON_GPU else 20_000
    where = f"output={tmp_path}/clicks"
    said_by("-m", "dlrm_app.cli", "generate", "format=dataset", "tables=criteo_kaggle", f"rows={rows}", where)
    table = said_by(str(BENCHMARKS / "loader.py"), f"{tmp_path}/clicks")
    speeds = re.findall(r"^(\S.*?) {2,}([\d,]+) ", table, re.M)
    assert len(speeds) == 3
    for stage, speed in speeds:
        record_property(stage, f"{speed} samples/s")
