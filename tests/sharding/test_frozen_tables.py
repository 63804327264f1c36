"""Frozen tables cost a plan their own bytes alone, and wide ones are cut by columns where a GPU takes no more."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dlrm_app.config.optimizer import SparseSettings
from dlrm_app.sharding.constraints import WIDEST, equal_part
from dlrm_app.sharding.cost import KINDS, estimate_options
from dlrm_app.sharding.search import search
from dlrm_app.tables.sparse_optimizers import optimizer_kinds
from dlrm_app.tables.table import Table
from dlrm_app.tables.vector_rows import VectorRows
from tests.sharding.clusters import cluster, workload

VECTORS = VectorRows("unread.npy", "sha256:", 1, "fp16")


def frozen(dim: int, rows: int = 10_000) -> Table:
    return Table("text", rows, dim, ("text",), data_type="fp16", vectors=replace(VECTORS, width=dim))


@pytest.mark.parametrize("dim", [4, 768, 1024, 1028, 1100, 1536, 2052, 3072, 4096])
def test_parts_are_few_and_cover_the_width(dim: int) -> None:
    part = equal_part(dim)
    assert part % 4 == 0
    assert part <= WIDEST
    assert -(-dim // part) == -(-dim // WIDEST)


@pytest.mark.parametrize("dim", [768, 1536, 3072])
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_gpu_holds_wide_vectors_in_parts(dim: int, ranks: int) -> None:
    work, machines = workload([frozen(dim)], "sgd"), cluster(ranks)
    plan = search(estimate_options(work, machines), machines)
    assert plan is not None
    option = plan["text"].option
    assert option.sizes[:, 1].max() <= WIDEST
    assert option.sizes.prod(1).sum() == 10_000 * dim
    on_cpu = estimate_options(work, cluster(ranks, device="cpu"))["text"]
    assert all(each.sizes[:, 1].max() == dim for each in on_cpu)


def test_a_plan_counts_no_state_and_no_update() -> None:
    table = frozen(384)
    assert optimizer_kinds([table], SparseSettings(kind="adagrad", lr=0.1)) == {"text": "sgd"}
    option = estimate_options(workload([table], "sgd"), cluster())["text"][0]
    of_kind = dict(zip(KINDS, option.memory.sum(0).tolist(), strict=True))
    assert of_kind["weights"] == table.num_bytes
    assert of_kind["optimizer"] == 0


PROGRAM = """
import sys
from pathlib import Path
from tests.plain_training import compose_train
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.tables.table import Table
from dlrm_app.training.setup import build_trainable
from dlrm_app.checksums import checksum
from dlrm_app.tables.vector_rows import VectorRows

rows, folder = int(sys.argv[1]), Path(sys.argv[2])
path = folder / f"{rows}.npy"
vectors = VectorRows(str(path), checksum(path), 384, "fp16")
tables = [Table("users", 100, 8, ("f1",)), Table("text", rows, 384, ("f2",), data_type="fp16", vectors=vectors)]
with start_runtime(num_threads=1) as runtime:
    config = compose_train()
    kept = build_trainable(config, ModelSpec(config.model, tables, 5), runtime)
    lines = Path("/proc/self/status").read_text().splitlines()
    print(next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")))
"""


@pytest.mark.long
def test_a_million_vectors_take_their_own_bytes(tmp_path: Path) -> None:
    """And 5% more, beside what the same model takes with a hundred of them."""
    sizes = {}
    for rows in (100, 1_000_000):
        vectors = np.lib.format.open_memmap(tmp_path / f"{rows}.npy", "w+", np.float16, (rows, 384))
        vectors[:] = 0.5
        vectors.flush()
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(rows), str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
        )
        sizes[rows] = int(done.stdout.split()[-1]) * 1024
    assert sizes[1_000_000] - sizes[100] < 1.05 * 1_000_000 * 384 * 2
