"""A run on a day's rows goes on from the day before's: rows keep what they learnt as long as their ids mean the same."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dlrm_app.config.compose import compose_config
from dlrm_app.config.scoring import EvaluateConfig
from dlrm_app.dataset.encoding_files import read_rows
from dlrm_app.dataset.manifest import Manifest, read_manifest
from dlrm_app.errors import DataError
from dlrm_app.evaluation.evaluate_checkpoints import evaluate_checkpoints
from dlrm_app.model.initial_weights import draw_block
from dlrm_app.runs.checkpoint.load import load_tensors
from dlrm_app.runs.checkpoint.storage import TensorReader
from dlrm_app.tables.specs import Table
from tests.preprocess.running import run
from tests.ranks import train_on_ranks
from tests.small_run import SMALL, losses, train_here

YAML = """
name: shop
delimiter: ","
header: true
columns:
  - {name: bought, role: label}
  - {name: age, role: dense, kind: float}
  - {name: item, role: sparse, kind: integer}
  - {name: city, role: sparse, kind: string}
"""
ROWS, DIM = 1024, 8
STILL = ["optimizer.sparse.lr=1e-30", "optimizer.dense.lr=1e-30", "model.initial_bias=random"]
"""Steps that change no bit of a weight that is not 0."""
SEED = 5


def write_day(path: Path, first_item: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    items, cities = random.integers(first_item, first_item + 40, ROWS), random.integers(0, 5, ROWS)
    bought = random.random(ROWS) < 0.2 + 0.015 * (items % 40)
    lines = [f"{b:d},{a},{i},c{c}" for b, a, i, c in zip(bought, items % 7, items, cities, strict=True)]
    path.write_text("bought,age,item,city\n" + "\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three days of 40 items each, half of which are the day before's; on the third one ids of the first are given again."""
    folder = tmp_path_factory.mktemp("days")
    (folder / "shop.yaml").write_text(YAML)
    for day in (1, 2, 3):
        write_day(folder / f"{day}.csv", 20 * day, day)
        keys = [
            f"dataset={folder}/shop.yaml",
            f"input.train={folder}/{day}.csv",
            "encoding=vocab",
            "encoding.min_count=1",
        ]
        keys += ["dense.bucket_columns=null", "dense.target_columns=null", "split.val=0.25"]
        keys += ["encoding.day=1"] if day == 1 else [f"encoding.grow_from={folder}/day{day - 1}"]
        keys += ["encoding.capacity={item: 62}", "encoding.expire_days=1"] if day == 3 else []
        run(folder / f"day{day}", *keys)
    return folder


@pytest.fixture(scope="module")
def first(days: Path) -> Path:
    train_here(days / "first", f"data.path={days}/day1", "trainer.epochs=2")
    return days / "first"


def go_on(run: Path, former: Path, dataset: Path, *overrides: str) -> None:
    train_here(
        run, f"data.path={dataset}", f"warm_start.checkpoint={former}", f"trainer.seed={SEED}", *overrides
    )


def tensors_of(run: Path) -> dict[str, torch.Tensor]:
    """The last checkpoint's."""
    folder = max((run / "checkpoints").glob("step-*"))
    entries = TensorReader(folder).read_metadata().state_dict_metadata
    tensors = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in entries.items()}
    load_tensors(folder, tensors)
    return tensors


def weights(run: Path, table: str) -> torch.Tensor:
    return next(tensor for name, tensor in tensors_of(run).items() if f".{table}.weight" in name)


def metrics(run: Path, dataset: Path) -> dict[str, Any]:
    settings = [f"checkpoint={run}", f"data.path={dataset}", "split=val", "threads=1"]
    found = evaluate_checkpoints(compose_config("evaluate", EvaluateConfig, settings)).models[0].metrics
    return {name: value for name, value in found.items() if name != "seconds"}


def history(folder: Path, feature: str) -> tuple[Manifest, np.ndarray, np.ndarray]:
    manifest = read_manifest(folder)
    (column,) = [column for column in manifest.sparse if column.name == feature]
    rows = read_rows(folder, column)
    return manifest, rows.generation, rows.given_day


def test_a_model_that_has_grown_scores_the_old_day_as_before(days: Path, first: Path, tmp_path: Path) -> None:
    go_on(tmp_path / "grown", first, days / "day2", "trainer.max_steps=1", *STILL)
    before, after = metrics(first, days / "day1"), metrics(tmp_path / "grown", days / "day1")
    assert after == before
    assert (len(weights(first, "t_item")), len(weights(tmp_path / "grown", "t_item"))) == (42, 62)


def test_rows_keep_what_they_learnt_and_those_given_again_begin_anew(
    days: Path, first: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """From the first day to the third, straight."""
    _, generation, given_day = history(days / "day3", "item")
    again = np.flatnonzero((given_day[:42] > 1) & (generation[:42] > 0))
    assert len(again) > 5
    with caplog.at_level(logging.INFO):
        go_on(tmp_path / "grown", first, days / "day3", "trainer.max_steps=1", *STILL)
    then, now = weights(first, "t_item"), weights(tmp_path / "grown", "t_item")
    table = Table("t_item", len(now), DIM, ("item",))
    expected = draw_block(table, SEED, 0, torch.from_numpy(generation))
    kept = np.setdiff1d(np.arange(42), again)
    expected[kept] = then[kept]
    assert torch.equal(now, expected)
    assert not torch.equal(draw_block(table, SEED, 0)[again], expected[again])
    # no item of the first day occurs on the third one
    sums = [tensors_of(run)["table/t_item/sum"] for run in (first, tmp_path / "grown")]
    assert torch.equal(sums[1][kept[2:]], sums[0][kept[2:]])
    assert sums[0][kept[2:]].all()
    lines = [line.split() for line in caplog.text.splitlines()]
    assert ["t_item", "grown", "and", "reset", f"{len(kept)}", f"{len(now) - 42}", f"{len(again)}"] in lines


@pytest.mark.long
def test_two_ranks_go_on_as_one_does(days: Path, first: Path, tmp_path: Path) -> None:
    go_on(tmp_path / "one", first, days / "day3")
    keys = [*SMALL, f"data.path={days}/day3", f"warm_start.checkpoint={first}", f"trainer.seed={SEED}"]
    train_on_ranks(2, *keys, "sharding.types=[row_wise]", "report.enabled=false", f"output={tmp_path}/two")
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


def test_an_older_day_and_another_lineage_are_refused(days: Path, first: Path, tmp_path: Path) -> None:
    go_on(tmp_path / "second", first, days / "day2", "trainer.max_steps=1")
    with pytest.raises(DataError, match=r"item: its vocabulary is of .*day 1, the model's of day 2\n"):
        go_on(tmp_path / "back", tmp_path / "second", days / "day1")
    run(
        tmp_path / "other",
        f"dataset={days}/shop.yaml",
        f"input.train={days}/2.csv",
        "encoding=vocab",
        "dense.bucket_columns=null",
        "dense.target_columns=null",
    )
    with pytest.raises(DataError, match=r"item: .*other values|item: num_embeddings"):
        go_on(tmp_path / "run", first, tmp_path / "other")
