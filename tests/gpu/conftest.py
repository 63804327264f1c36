"""The device under test, and CPU reference runs."""

import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from unittest import mock

import pytest
import torch

from dlrm_app.config.generate import GenerateConfig
from dlrm_app.config.train import TrainConfig
from dlrm_app.loader.batch_order import enough_lanes
from dlrm_app.tools.synthetic.inputs import write_inputs
from dlrm_app.training.train import train
from tests.composed import compose_config
from tests.gpu.cases import COMMON, PLAIN, STEPS, TABLES
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


Note = Callable[[str, object], None]
"""Adds a name and a value to a test's row in the report."""
Reference = Callable[[tuple[str, ...]], tuple[Path, Path, list[str]]]


@pytest.fixture(scope="session")
def reference(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """model → (run of one step, run that resumes it, their settings), on one process of the CPU; each is run once."""

    @cache
    def run(model: tuple[str, ...]) -> tuple[Path, Path, list[str]]:
        root = tmp_path_factory.mktemp("reference")
        first, whole = root / "first", root / "whole"
        plain = first if model == PLAIN else run(PLAIN)[0]
        common = [*settings, *(w.replace("PLAIN", str(plain)) for w in model)]
        legs = [
            [*common, "trainer.max_steps=1", f"output={first}"],
            [*common, f"resume={first}", f"output={whole}"],
        ]
        start_ranks(partial(train_legs, legs, {"CUDA_VISIBLE_DEVICES": ""}), 1, 1, SECONDS)
        return first, whole, common

    return run
