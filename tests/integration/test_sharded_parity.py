"""Two and four ranks train like one process of plain torch, whatever the sharding."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.runtime import start_runtime
from dlrm_app.training.build import build_trainable
from tests.integration.sharded_losses import BATCH, COMMON, NUM_STEPS
from tests.plain_training import plain_copy, run_plain
from tests.random_batches import NUM_DENSE, TABLES, draw

ROOT = Path(__file__).parents[2]
OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "adam")
TYPES = ("data_parallel", "table_wise", "row_wise", "column_wise", "table_row_wise")
# Column-wise shards of a row keep an accumulator each, so row-wise Adagrad is another algorithm there.
CASES = [
    (kind, name)
    for kind in TYPES
    for name in OPTIMIZERS
    if (kind, name) != ("column_wise", "rowwise_adagrad")
]
CASES += [("row_wise", "partial_rowwise_lamb"), ("data_parallel", "partial_rowwise_adam")]


def plain_losses(optimizer: str) -> torch.Tensor:
    """Losses of the plain torch model from the same first weights."""
    config = compose_config("train", TrainConfig, [*COMMON, f"optimizer={optimizer}"])
    with start_runtime(num_threads=1) as runtime:
        plain = plain_copy(build_trainable(config, TABLES, NUM_DENSE, runtime))
    return run_plain(plain, config, [draw(seed, BATCH) for seed in range(NUM_STEPS)])


def sharded(num_ranks: int, folder: Path) -> list[list[float]]:
    output = folder / "losses.json"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(num_ranks),
    ]
    command += [str(ROOT / "tests/integration/sharded_losses.py"), json.dumps(CASES), str(output)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(output.read_text())


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.long)])
def test_every_sharding_trains_like_plain_torch(num_ranks: int, tmp_path: Path) -> None:
    """Losses over 20 steps, shared and multi-hot tables and a clipped dense gradient included."""
    expected = {name: plain_losses(name) for name in {name for _, name in CASES}}
    for (kind, name), found in zip(CASES, sharded(num_ranks, tmp_path), strict=True):
        torch.testing.assert_close(
            torch.tensor(found),
            expected[name],
            rtol=1e-5,
            atol=1e-6,
            msg=lambda m, k=kind, n=name: f"{k} {n}: {m}",
        )
