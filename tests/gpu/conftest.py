"""The device under test, CPU reference runs, and a table of the results to paste into an issue."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from dlrm_app.config.compose import compose_config
from dlrm_app.config.datasets import GenerateConfig
from dlrm_app.config.train import TrainConfig
from dlrm_app.synthetic.dataset import write_inputs
from dlrm_app.training.train import train
from tests.gpu.cases import STEPS, TABLES, batch_size, common_settings
from tests.ranks import start_ranks

DEVICE = "cpu" if os.environ.get("DEVICE") == "cpu" else "cuda"
RANKS = 2 if DEVICE == "cpu" else max(1, torch.cuda.device_count())
SECONDS = 180
"""How long a case may take, so that one that hangs does not hold up the others."""


@pytest.fixture(autouse=True)
def device() -> str:
    """The device under test; without a GPU the test is skipped."""
    if DEVICE == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU: dlrm-doctor says why, DEVICE=cpu runs the tests on the CPU")
    return DEVICE


def train_legs(legs: Sequence[Sequence[str]], environment: dict[str, str]) -> None:
    """Runs dlrm-train with the settings of each leg in this process."""
    os.environ.update(environment)
    for settings in legs:
        train(compose_config("train", TrainConfig, settings))


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Settings of all runs, with a synthetic dataset written for them."""
    root = tmp_path_factory.mktemp("inputs")
    (root / "tables.yaml").write_text(TABLES)
    rows = batch_size(RANKS)
    inputs = ["format=dataset", f"tables={root}/tables.yaml", "num_dense=4", "alpha=1.05"]
    sizes = [f"rows={2 * STEPS * rows}", f"val_rows={rows + 7}", f"output={root}/dataset"]
    write_inputs(compose_config("generate", GenerateConfig, [*inputs, *sizes]))
    return [f"data.path={root}/dataset", f"tables={root}/tables.yaml", *common_settings(RANKS)]


@pytest.fixture(scope="session")
def reference(
    settings: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, Path]]:
    """optimizer → (run of one step, run that resumes it), both on one process of the CPU; each is run once."""
    done: dict[str, tuple[Path, Path]] = {}

    def run(optimizer: str) -> tuple[Path, Path]:
        if optimizer not in done:
            root = tmp_path_factory.mktemp(optimizer)
            first, whole = root / "first", root / "whole"
            common = [*settings, f"optimizer={optimizer}"]
            legs = [
                [*common, "trainer.max_steps=1", f"output={first}"],
                [*common, f"resume={first}", f"output={whole}"],
            ]
            start_ranks(partial(train_legs, legs, {"CUDA_VISIBLE_DEVICES": ""}), 1, 1, SECONDS)
            done[optimizer] = (first, whole)
        return done[optimizer]

    return run


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints a Markdown table: one row a test with its properties, under the versions and the device."""
    reports = [
        report
        for outcome in ("passed", "failed", "error")
        for report in terminalreporter.stats.get(outcome, [])
        if report.nodeid.startswith("tests/gpu/")
    ]
    if not reports:
        return
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    fbgemm = "fbgemm-gpu-cpu" if torch.version.cuda is None else "fbgemm-gpu"
    packages = ", ".join(f"{each} {version(each)}" for each in ("torch", fbgemm, "torchrec"))
    counts = ", ".join(f"{number} {name}" for name, number in Counter(r.outcome for r in reports).items())
    write = terminalreporter.write_line
    write(
        f"\n{RANKS} × {name}; {packages}: {counts}\n\n| test | outcome | seconds | remarks |\n|---|---|---|---|"
    )
    for report in reports:
        remarks = "; ".join(f"{key} {value}" for key, value in report.user_properties)
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = crash.message if crash else str(report.longrepr)
            if "EOFError" in said:  # a rank ended: its last line says why
                said = report.capstderr.strip().rpartition("\n")[2] or said
            remarks = f"{remarks} {said}".strip().splitlines()[0]
        test = report.nodeid.partition("::")[2]
        write(f"| {test} | {report.outcome} | {report.duration:.1f} | {remarks.replace('|', '/')[:200]} |")
