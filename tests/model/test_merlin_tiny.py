"""Merlin's Tiny from inputs to metrics by the real commands, with tables of a thousandth of their rows."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dlrm_app.config.compose import conf_dir

MIXED = [  # a way to shard for each line of the file, in its order
    "data_parallel",
    "row_wise",
    "column_wise",
    "table_row_wise",
    "table_wise",
    "row_wise",
    "column_wise",
    "table_column_wise",
    "grid_shard",
]
TRAIN = [
    "model=merlin_tiny",
    "optimizer=adagrad",
    "data.lanes=8",
    "trainer.threads=1",
    "trainer.log_every_steps=1",
]


def write_tables(folder: Path) -> None:
    """tiny.yaml: a thousandth of the rows, but never fewer than 10; mixed.yaml: the same, sharded in every way."""
    tables = yaml.safe_load((conf_dir() / "tables" / "merlin_tiny.yaml").read_text())
    for spec in tables["specs"]:
        spec["rows"] = max(10, spec["rows"] // 1000)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(tables))
    for spec, kind in zip(tables["specs"], MIXED, strict=True):
        spec["sharding"] = {"types": [kind]}
    (folder / "mixed.yaml").write_text(yaml.safe_dump(tables))


def run(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def train(folder: Path, ranks: int, *overrides: str) -> list[dict[str, Any]]:
    """The events of a run of 20 steps."""
    launcher = (
        [] if ranks == 1 else ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
    )
    arguments = [
        "dlrm_app.cli",
        "train",
        "data.path=inputs",
        "trainer.global_batch_size=128",
        *TRAIN,
        *overrides,
    ]
    run(folder, *launcher, *arguments)
    output = next(word.removeprefix("output=") for word in overrides if word.startswith("output="))
    return [json.loads(line) for line in (folder / output / "metrics.jsonl").read_text().splitlines()]


def losses(events: list[dict[str, Any]]) -> list[float]:
    return [event["loss"] for event in events if event["event"] == "train"]


def auc(events: list[dict[str, Any]]) -> float:
    return next(event["auc"] for event in events if event["event"] == "eval")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("merlin")
    write_tables(folder)
    run(
        folder,
        "dlrm_app.cli",
        "generate",
        "format=dataset",
        "tables=tiny.yaml",
        "rows=2560",
        "val_rows=512",
        "output=inputs",
    )
    return folder


@pytest.fixture(scope="module")
def one_rank(folder: Path) -> list[dict[str, Any]]:
    return train(folder, 1, "tables=tiny.yaml", "output=one")


@pytest.mark.long
@pytest.mark.parametrize("tables", ["tiny", "mixed"])
def test_two_ranks_train_like_one(folder: Path, one_rank: list[dict[str, Any]], tables: str) -> None:
    """The planner's own plan, and every sharding type in one: same losses over 20 steps, same AUC on val."""
    found = train(folder, 2, f"tables={tables}.yaml", f"output={tables}")
    assert len(losses(one_rank)) == 20
    assert losses(found) == pytest.approx(losses(one_rank), rel=1e-5)
    assert auc(found) == pytest.approx(auc(one_rank), abs=1e-4)
    if tables == "mixed":
        plan = yaml.safe_load((folder / "mixed" / "plan.yaml").read_text())["tables"]
        assert {table["sharding_type"] for table in plan.values()} == set(MIXED)


@pytest.mark.long
def test_a_checkpoint_of_one_rank_is_evaluated_on_two(folder: Path, one_rank: list[dict[str, Any]]) -> None:
    """Same AUC from the weights on disk as from those in memory, under another plan."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    run(folder, *launcher, "dlrm_app.cli", "evaluate", "checkpoint=one", "split=val", "output=again.json")
    found = json.loads((folder / "again.json").read_text())
    assert found["models"][0]["metrics"]["auc"] == pytest.approx(auc(one_rank), abs=1e-6)
