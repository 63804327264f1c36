"""Days whose vocabulary grows: what a model reads of other days, what a resumed run keeps, what is refused."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from dlrm_app.dataset.columns import column_problems, describe_columns
from dlrm_app.dataset.encoding_files import read_rows
from dlrm_app.dataset.lineage import relate
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import DataError, Problem
from dlrm_app.model.initial_weights import draw_block
from dlrm_app.runs.checkpoint.load import load_tensors
from dlrm_app.runs.checkpoint.storage import TensorReader
from dlrm_app.tables.table import Table
from tests.inference.conftest import export_here, predicted
from tests.make_log import describe, write_csv
from tests.preprocessing.running import run, table_of
from tests.refusals import refused
from tests.small_run import CLOCK, evaluate_here, train_here

COLUMNS = [
    "{name: bought, role: label}",
    "{name: age, role: dense, kind: float}",
    "{name: item, role: sparse, kind: integer}",
    '{name: basket, role: sparse, kind: integer, separator: "|"}',
]
FEATURES = ["item", "basket"]
ROWS, DIM, SEED = 1024, 8, 5
STILL = ["optimizer.sparse.lr=1e-30", "optimizer.dense.lr=1e-30", "model.initial_bias=random"]
"""Steps that change no bit of a weight that is not 0."""


def write_day(path: Path, first_item: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    items = random.integers(first_item, first_item + 40, (ROWS, 3))
    bought = random.random(ROWS) < 0.2 + 0.015 * (items[:, 0] % 40)
    item, baskets = items[:, 0], items[:, 1:].tolist()
    write_csv(path, {"bought": bought, "age": item % 7, "item": item, "basket": baskets})


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Manifest]:
    """Three days of 40 items each, half of them the day before's; the third day reuses ids of the first.

    Days 2 and 3 also encoded as day 1, and day 2 with a vocabulary of another lineage.
    """
    folder = tmp_path_factory.mktemp("days")
    vocabulary = ["encoding=vocab", "encoding.min_count=1"]
    growths = {
        "day1": [*vocabulary, "encoding.day=1"],
        "day2": [*vocabulary, f"encoding.grow_from={folder}/day1"],
        "day3": [*vocabulary, f"encoding.grow_from={folder}/day2", "encoding.capacity={item: 62}"],
        "day2_as_day1": ["encoding=from_dataset", f"encoding.path={folder}/day1"],
        "day3_as_day1": ["encoding=from_dataset", f"encoding.path={folder}/day1"],
        "day2_alone": [*vocabulary, "encoding.day=2"],
    }
    growths["day3"] += ["encoding.expire_days=1"]
    for day in (1, 2, 3):
        write_day(folder / f"day{day}.csv", 20 * day, day)
    given = [f"dataset={describe(folder, COLUMNS)}", "split.val=0.25"]
    return {
        name: run(folder / name, *given, f"input.train={folder}/{name[:4]}.csv", *growth)
        for name, growth in growths.items()
    }


@pytest.fixture(scope="module")
def first(days: dict[str, Manifest], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the first day."""
    folder = tmp_path_factory.mktemp("first") / "run"
    train_here(folder, f"data.path={days['day1'].folder}", "trainer.epochs=2")
    return folder


def measure(model: Path, manifest: Manifest) -> dict[str, float]:
    found = evaluate_here(f"checkpoint={model}", f"data.path={manifest.folder}", "split=val")
    return {name: value for name, value in found.models[0].metrics.items() if name not in CLOCK}


def scores(model: Path, manifest: Manifest, output: Path) -> list[float]:
    table = predicted(output, f"model={model}", f"data.path={manifest.folder}", "split=val")
    return list(table["score"].to_pylist())


def go_on(run: Path, former: Path, manifest: Manifest, *overrides: str) -> None:
    warm = [f"warm_start.checkpoint={former}", f"trainer.seed={SEED}"]
    train_here(run, f"data.path={manifest.folder}", *warm, *overrides)


def tensors_of(run: Path) -> dict[str, torch.Tensor]:
    """The last checkpoint's."""
    folder = max((run / "checkpoints").glob("step-*"))
    reader = TensorReader(folder)
    tensors = {name: torch.empty(saved.size, dtype=saved.dtype) for name, saved in reader.tensors.items()}
    load_tensors(reader, tensors)
    return tensors


def item_weights(run: Path) -> torch.Tensor:
    return next(tensor for name, tensor in tensors_of(run).items() if ".t_item.weight" in name)


@pytest.mark.slow
def test_a_model_reads_a_later_day_by_its_own_vocabulary(
    days: dict[str, Manifest], first: Path, tmp_path: Path
) -> None:
    """Also one on which ids were freed and given to other values."""
    for day in ("day2", "day3"):
        own = days[f"{day}_as_day1"]
        assert not table_of(days[day], "val").equals(table_of(own, "val"))
        assert measure(first, days[day]) == measure(first, own)
    later = scores(first, days["day2"], tmp_path / "later.parquet")
    assert later == scores(first, days["day2_as_day1"], tmp_path / "own.parquet")


def test_each_pair_of_days_is_related_as_it_was_grown(days: dict[str, Manifest]) -> None:
    columns = {name: describe_columns(manifest) for name, manifest in days.items()}
    kinds = {name: relate(columns["day1"], columns[name]).kind for name in days}
    same = dict.fromkeys(("day1", "day2_as_day1", "day3_as_day1"), "same")
    assert kinds == {**same, "day2": "newer", "day3": "newer", "day2_alone": "other"}
    older = relate(columns["day3"], columns["day2"])
    assert (older.kind, older.day) == ("older", 2)
    assert column_problems(columns["day2"], days["day1"], FEATURES, takes=("older",)) == []
    assert column_problems(columns["day1"], days["day3"], FEATURES, takes=("newer",)) == []
    assert column_problems(columns["day1"], days["day2"], FEATURES) == [
        Problem(name, "has a vocabulary of day 2, the model's of day 1") for name in FEATURES
    ]


def test_ids_given_again_and_other_lineages_are_refused_by_name(
    days: dict[str, Manifest], first: Path, tmp_path: Path
) -> None:
    train_here(tmp_path / "third", f"data.path={days['day3'].folder}", "trainer.max_steps=2")
    again = "has a vocabulary whose ids were given to other values since, on day 3"
    with refused(DataError, "item", again):
        measure(tmp_path / "third", days["day2"])
    with refused(DataError, "item", again):
        scores(tmp_path / "third", days["day2"], tmp_path / "scores.parquet")
    with refused(DataError, "item", "has other values in its vocab/item.parquet"):
        measure(first, days["day2_alone"])
    with refused(DataError, "item", "has a vocabulary of day 2, the model's of day 1"):
        export_here(f"checkpoint={first}", f"data.path={days['day2'].folder}", f"output={tmp_path}/export")
    with refused(
        DataError,
        ".../run/checkpoints/step-000000012",
        "was trained on another dataset (.../day1 as it was then) than .../day2 is now",
    ):
        train_here(first, f"data.path={days['day2'].folder}", "resume=auto", "trainer.epochs=3")
    go_on(tmp_path / "second", first, days["day2"], "trainer.max_steps=1")
    with refused(DataError, "item", "has a vocabulary of ...day 1, the model's of day 2"):
        go_on(tmp_path / "back", tmp_path / "second", days["day1"])
    with refused(DataError, "item", "has other values in its vocab/item.parquet"):
        go_on(tmp_path / "run", first, days["day2_alone"])


def test_a_model_that_has_grown_scores_the_old_day_as_before(
    days: dict[str, Manifest], first: Path, tmp_path: Path
) -> None:
    go_on(tmp_path / "grown", first, days["day2"], "trainer.max_steps=1", *STILL)
    assert measure(tmp_path / "grown", days["day1"]) == measure(first, days["day1"])
    assert (len(item_weights(first)), len(item_weights(tmp_path / "grown"))) == (42, 62)


def test_rows_keep_their_weights_and_reused_ids_begin_again(
    days: dict[str, Manifest], first: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """From the first day to the third, straight."""
    (column,) = [column for column in days["day3"].sparse if column.name == "item"]
    rows = read_rows(days["day3"].folder, column)
    again = np.flatnonzero((rows.given_day[:42] > 1) & (rows.generation[:42] > 0))
    assert len(again) > 5
    with caplog.at_level(logging.INFO):
        go_on(tmp_path / "grown", first, days["day3"], "trainer.max_steps=1", *STILL)
    then, now = item_weights(first), item_weights(tmp_path / "grown")
    table = Table("t_item", len(now), DIM, ("item",))
    expected = draw_block(table, SEED, 0, torch.from_numpy(rows.generation))
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
