"""The device under test, and CPU reference runs."""

import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dlrm_app.config.generate import GenerateConfig
from dlrm_app.config.train import TrainConfig
from dlrm_app.loader.batch_order import enough_lanes
from dlrm_app.tools.synthetic.inputs import write_inputs
from dlrm_app.training.train import train
from tests.composed import compose_config
from tests.gpu.cases import COMMON, PLAIN, RICH, STEPS, TABLES
from tests.make_log import make_log
from tests.preprocessing.running import run as preprocess
from tests.ranks import start_ranks

DEVICE = "cpu" if os.environ.get("DEVICE") == "cpu" else "cuda"
if DEVICE == "cpu":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # also where there are GPUs
ON_GPU = DEVICE == "cuda"
RANKS = 2 if DEVICE == "cpu" else max(1, torch.cuda.device_count())
SECONDS = 180  # that a case may take, so that one that hangs does not hold up the others


@pytest.fixture(autouse=True)
def device() -> str:
    """The device under test; without a GPU the test is skipped."""
    if DEVICE == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU: dlrm-doctor says why, DEVICE=cpu runs the tests on the CPU")
    return DEVICE


def train_legs(legs: Sequence[Sequence[str]], environment: dict[str, str]) -> None:
    """Runs dlrm-train with the settings of each leg in this process; a part that torch cannot compile is an error."""
    os.environ.update(environment)
    refused = mock.Mock(side_effect=lambda *said: pytest.fail(str(said)))
    with mock.patch("dlrm_app.model.compiled_parts.logger.warning", refused):
        for settings in legs:
            train(compose_config("train", TrainConfig, settings))


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Settings of all runs, with a synthetic dataset written for them."""
    root = tmp_path_factory.mktemp("inputs")
    (root / "tables.yaml").write_text(TABLES)
    rows = 4 * enough_lanes(RANKS)
    inputs = ["format=dataset", f"tables={root}/tables.yaml", "num_dense=4", "alpha=1.05"]
    sizes = [f"rows={2 * STEPS * rows}", f"val_rows={rows + 7}", f"output={root}/dataset"]
    write_inputs(compose_config("generate", GenerateConfig, [*inputs, *sizes]))
    batches = [f"trainer.global_batch_size={rows}", f"data.lanes={rows // 4}"]
    return [f"data.path={root}/dataset", f"tables={root}/tables.yaml", *batches, *COMMON]


@pytest.fixture(scope="session")
def rich(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """``settings`` for a dataset with vectors by item and by row, weighted lists, two labels and weights of rows."""
    root = tmp_path_factory.mktemp("rich")
    rows = 3 * STEPS * 4 * enough_lanes(RANKS)
    random = np.random.default_rng(5)
    item, clicked = random.integers(0, 40, rows), random.integers(0, 2, rows)
    seen = [random.integers(0, 40, size) for size in random.integers(0, 4, rows)]
    table = {
        "clicked": clicked,
        "bought": clicked * random.integers(0, 2, rows),
        "importance": np.round(random.random(rows) + 0.5, 3),
        "age": random.integers(18, 70, rows),
        "item": item,
        "seen": pa.array(seen, pa.list_(pa.int64())),
        "dwell": pa.array([random.random(len(each)).round(3) for each in seen], pa.list_(pa.float64())),
        "query": pa.array([*random.normal(size=(rows, 6)).round(4)], pa.list_(pa.float64())),
    }
    vectors = random.normal(size=(30, 20)).astype(np.float16)
    pq.write_table(pa.table({"value": np.arange(30), "vector": [*vectors]}), root / "items.parquet")
    columns = [
        *("{name: clicked, role: label}", "{name: bought, role: label}", "{name: importance, role: weight}"),
        *("{name: age, role: dense, kind: integer}", "{name: item, role: sparse, kind: integer}"),
        '{name: seen, role: sparse, kind: integer, separator: "|"}',
        "{name: dwell, role: element_weights, weights_of: seen}",
        '{name: query, role: vector, size: 6, separator: "|"}',
    ]
    given = make_log(root, columns, table, "labels: [clicked, {bought: {given: clicked}}]")
    derived = f"derived:\n  - {{name: text, kind: vectors, of: item, file: {root}/items.parquet}}\n"
    with (root / "log.yaml").open("a") as file:
        file.write(derived)
    preprocess(root / "dataset", *given, "split.val=0.1", "encoding=vocab")
    own = ("data.path=", "tables=", "evaluation.group_by=")
    kept = [word for word in settings if not word.startswith(own)]
    return [f"data.path={root}/dataset", "tables=dataset", "tables.embedding_dim=32", *kept]


Note = Callable[[str, object], None]
"""Adds a name and a value to a test's row in the report."""
Reference = Callable[[tuple[str, ...]], tuple[Path, Path, list[str]]]


@pytest.fixture(scope="session")
def reference(settings: list[str], rich: list[str], tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """model → (run of one step, run that resumes it, their settings), on one process of the CPU; each is run once."""

    @cache
    def run(model: tuple[str, ...]) -> tuple[Path, Path, list[str]]:
        root = tmp_path_factory.mktemp("reference")
        first, whole = root / "first", root / "whole"
        plain = first if model == PLAIN else run(PLAIN)[0]
        own = (word.replace("PLAIN", str(plain)) for word in model if word != RICH)
        common = [*(rich if RICH in model else settings), *own]
        legs = [
            [*common, "trainer.max_steps=1", f"output={first}"],
            [*common, f"resume={first}", f"output={whole}"],
        ]
        start_ranks(partial(train_legs, legs, {"CUDA_VISIBLE_DEVICES": ""}), 1, 1, SECONDS)
        return first, whole, common

    return run
