"""Train pipelines on two ranks: what tests/training/test_pipelines.py says of one holds of more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.dataset_fixture import write_dataset
from tests.training.test_pipelines import ON_CPU, SMALL, VAL_ROWS, events, last_tensors, losses


def run(folder: Path, name: str, *overrides: str) -> Path:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    wishes = ["data.path=data", f"output={name}", "sharding.types=[row_wise]", *overrides]
    command = [sys.executable, *launch, "-m", "dlrm_app.cli.train", *SMALL, *wishes]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=600, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / name


@pytest.mark.long
@pytest.mark.parametrize("pipeline", ON_CPU)
def test_two_ranks_evaluate_in_mid_epoch_and_train_on_to_the_bit(pipeline: str, tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", rows={"train": 1000, "val": VAL_ROWS})
    wish = f"trainer.pipeline={pipeline}"
    without = run(tmp_path, "without", wish)
    within = run(tmp_path, "within", wish, "evaluation.every_steps=2")
    assert [event["num_samples"] for event in events(within, "eval")] == [VAL_ROWS] * 8
    assert losses(within) == losses(without)
    assert last_tensors(within) == last_tensors(without)
