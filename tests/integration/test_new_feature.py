"""A run on a day with one feature more begins with the model of the day before, whose ids it keeps."""

import logging
from pathlib import Path

import numpy as np
import pytest

from dlrm_app.dataset.columns import describe_columns
from dlrm_app.dataset.lineage import relate
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import ConfigError, DataError
from tests.inference.conftest import predicted
from tests.make_log import describe, write_csv
from tests.preprocessing.running import run, table_of
from tests.refusals import refused
from tests.small_run import train_here

COLUMNS = [
    "{name: bought, role: label}",
    "{name: age, role: dense, kind: float}",
    "{name: a, role: sparse, kind: integer}",
    "{name: b, role: sparse, kind: string}",
]
NEW = "{name: c, role: sparse, kind: string}"
STILL = ["optimizer.sparse.lr=1e-30", "optimizer.dense.lr=1e-30", "model.initial_bias=random"]
ROWS = 1024


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Manifest]:
    """Day 1 with the columns a and b, day 2 with c besides, by each way to keep ids, and a third day."""
    folder = tmp_path_factory.mktemp("days")
    describe(folder, COLUMNS, name="one")
    describe(folder, [*COLUMNS, NEW], name="two")
    for day in (1, 2, 3):
        random = np.random.default_rng(day)
        a, b, c = random.integers(15 * day, 15 * day + 30, ROWS), *random.integers(0, 9, (2, ROWS))
        clicks = random.random(ROWS) < 0.2 + 0.01 * (a % 30) + 0.03 * b
        rows = {"bought": clicks, "age": a % 7, "a": a}
        rows |= {name: [f"{name}{value}" for value in values] for name, values in (("b", b), ("c", c))}
        write_csv(folder / f"day{day}.csv", rows)
    grown, known = ["encoding=vocab", "encoding.grow_from={}"], ["encoding=from_dataset", "encoding.path={}"]
    steps = {
        "day1": ("one", 1, ["encoding=vocab", "encoding.day=1"], ""),
        "day2": ("two", 2, grown, "day1"),
        "day3": ("two", 3, grown, "day2"),
        "day2_known": ("two", 2, known, "day1"),
        "day3_after_known": ("two", 3, grown, "day2_known"),
        "day2_as_day1": ("one", 2, known, "day1"),
    }
    made: dict[str, Manifest] = {}
    for name, (columns, day, how, parent) in steps.items():
        words = [word.format(folder / parent) for word in how]
        given = [f"dataset={folder}/{columns}.yaml", f"input.train={folder}/day{day}.csv", "split.val=0.25"]
        made[name] = run(folder / name, *given, *words)
    return made


@pytest.fixture(scope="module")
def first(days: dict[str, Manifest], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first") / "run"
    train_here(folder, f"data.path={days['day1'].folder}", "trainer.epochs=2")
    return folder


def begin_with(run_folder: Path, former: Path, manifest: Manifest, *words: str) -> None:
    train_here(run_folder, f"data.path={manifest.folder}", f"warm_start.checkpoint={former}", *words)


def scores(model: Path, manifest: Manifest, output: Path) -> list[float]:
    table = predicted(output, f"model={model}", f"data.path={manifest.folder}", "split=val")
    return list(table["score"].to_pylist())


def test_every_later_day_is_related_to_the_first(days: dict[str, Manifest]) -> None:
    columns = {name: describe_columns(manifest) for name, manifest in days.items()}
    kinds = {name: relate(columns["day1"], given).kind for name, given in columns.items()}
    assert kinds == {**dict.fromkeys(days, "newer"), "day1": "same", "day2_as_day1": "same"}


@pytest.mark.parametrize("name", ["day2", "day2_known"])
def test_a_warm_start_takes_the_new_feature(
    days: dict[str, Manifest], first: Path, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its rows add 0 at first, so values that the earlier model knows keep their scores; and the next day goes on."""
    with refused(ConfigError, "features", "differ from ...: c new", "...warm_start.allow=[features]"):
        begin_with(tmp_path / "no", first, days[name])
    words = ["warm_start.allow=[features]", "trainer.max_steps=1", *STILL]
    with caplog.at_level(logging.INFO):
        begin_with(tmp_path / "second", first, days[name], *words)
    assert ["t_c", "new", "11"] in [line.split() for line in caplog.text.splitlines()]
    before = days["day2_as_day1"]
    old = np.array(scores(first, before, tmp_path / "old.parquet"))
    new = np.array(scores(tmp_path / "second", days[name], tmp_path / "new.parquet"))
    is_known = table_of(days[name], "val")["a"].to_numpy() == table_of(before, "val")["a"].to_numpy()
    assert is_known.mean() > 0.4
    assert new[is_known] == pytest.approx(old[is_known], abs=1e-6)
    later = days["day3" if name == "day2" else "day3_after_known"]
    begin_with(tmp_path / "third", tmp_path / "second", later, "trainer.max_steps=1")


def test_an_earlier_model_reads_the_later_days(
    days: dict[str, Manifest], first: Path, tmp_path: Path
) -> None:
    own = scores(first, days["day2_as_day1"], tmp_path / "own.parquet")
    for name in ("day2", "day2_known"):
        assert scores(first, days[name], tmp_path / f"{name}.parquet") == own
    begin_with(tmp_path / "second", first, days["day2"], "warm_start.allow=[features]", "trainer.max_steps=1")
    with refused(DataError, "c", "is not one of its sparse columns"):
        scores(tmp_path / "second", days["day1"], tmp_path / "none.parquet")
