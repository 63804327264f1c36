"""Stopped at any step, by SIGTERM or kill -9, every optimizer under every plan ends as if nothing had happened."""

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS
from tests.commands import torchrun
from tests.loader.dataset_fixture import write_dataset
from tests.small_run import SMALL, events, final_bytes

NUM_STEPS = 30  # two epochs of 15
PLANS = {
    1: ["table_wise"],
    2: ["table_wise", "row_wise", "column_wise"],
    4: ["table_wise", "row_wise", "column_wise"],
}


def make_cases(dataset: Path, ranks: int) -> list[dict[str, Any]]:
    """Every optimizer and plan with a SIGTERM at a random step; each optimizer under one plan with a kill -9 too.

    On four ranks, whose restarts take long, three of them. Every other case saves in the background.
    """
    chance = random.Random(ranks)
    cases = []
    for place, optimizer in enumerate(SPARSE_OPTIMIZERS):
        for plan in PLANS[ranks]:
            kill = PLANS[ranks][place % len(PLANS[ranks])] == plan and (ranks < 4 or place < 3)
            steps = chance.sample(range(2, NUM_STEPS), 1 + kill)
            stops = [(steps[0], "SIGTERM", chance.randrange(ranks))]
            stops += [(step, "SIGKILL", chance.randrange(ranks)) for step in steps[1:]]
            in_background = len(cases) % 2 == 1
            cases.append(
                {
                    "name": f"{optimizer}-{plan}",
                    "overrides": [*overrides(dataset, optimizer, plan, in_background)],
                    "stops": stops,
                }
            )
    return cases


def overrides(dataset: Path, optimizer: str, plan: str, in_background: bool) -> list[str]:
    return [
        f"data.path={dataset}",
        *SMALL,
        "trainer.global_batch_size=64",
        "trainer.epochs=2",
        "schedule=cosine",
        "checkpoint.every_steps=4",
        "report.enabled=false",
        f"optimizer={optimizer}",
        f"sharding.types=[{plan}]",
        f"checkpoint.asynchronous={str(in_background).lower()}",
    ]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Runs every case under 1, 2 and 4 ranks; gives the folder of each number of ranks."""
    root = tmp_path_factory.mktemp("cases")
    write_dataset(root / "dataset", rows={"train": 15 * 64 + 3, "val": 65}, one_hot=(20, 200))
    folders = {}
    for ranks in PLANS:
        folder = root / str(ranks)
        folder.mkdir()
        cases = make_cases(root / "dataset", ranks)
        (folder / "cases.json").write_text(json.dumps(cases))
        launch(folder, ranks)
        folders[ranks] = folder
    return folders


def launch(folder: Path, ranks: int) -> None:
    script = Path(__file__).with_name("resume_cases.py")
    root = str(Path(__file__).parents[2])
    with (folder / "log.txt").open("w") as log:
        done = subprocess.run(
            [*torchrun(ranks), "--max-restarts=10", str(script), str(folder / "cases.json"), str(folder)],
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
            timeout=3000,
            check=False,
        )
    assert done.returncode == 0, (folder / "log.txt").read_text()[-3000:]


@pytest.mark.long
@pytest.mark.parametrize("ranks", PLANS)
def test_a_stopped_run_ends_as_the_undisturbed_one_to_the_bit(folders: dict[int, Path], ranks: int) -> None:
    """Same ranks and plan: losses, evaluations, weights and optimizer state; every stop did happen."""
    for case in json.loads((folders[ranks] / "cases.json").read_text()):
        folder = folders[ranks] / case["name"]
        assert len(list(folder.glob("stopped-*"))) == len(case["stops"])
        assert events(folder / "cut") == events(folder / "whole"), case
        assert final_bytes(folder / "cut") == final_bytes(folder / "whole"), case
