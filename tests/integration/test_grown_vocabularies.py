"""Models and datasets of different days of the same vocabularies: what is read, and what is refused by name."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dlrm_app.config.compose import compose_config
from dlrm_app.config.scoring import EvaluateConfig, ExportConfig, PredictConfig
from dlrm_app.dataset.columns import column_problems, describe_columns
from dlrm_app.dataset.lineage import relate
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import DataError
from dlrm_app.evaluation.evaluate_checkpoints import evaluate_checkpoints
from dlrm_app.inference.export import export_model
from dlrm_app.inference.predict.predict import predict
from tests.preprocess.running import run, table_of
from tests.small_run import CLOCK, train_here

COLUMNS = """
name: shop
columns:
  - {name: sold, role: label}
  - {name: price, role: dense, kind: float}
  - {name: item, role: sparse, kind: string}
  - {name: basket, role: sparse, kind: string, separator: "|"}
"""
ROWS = 400
FEATURES = ["item", "basket"]


def write_day(path: Path, first: int) -> None:
    """Rows of items from number ``first`` on, 30 of them."""
    lines = []
    for row in range(ROWS):
        items = [f"i{first + row * step % 30}" for step in (7, 11, 13)]
        lines.append(f"{row * row % 5 == 1:d}\t{row % 9}.5\t{items[0]}\t{'|'.join(items[1:])}")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Manifest]:
    """Days 1 to 3, of which the third gives ids again; days 2 and 3 also encoded as day 1."""
    folder = tmp_path_factory.mktemp("days")
    (folder / "shop.yaml").write_text(COLUMNS)
    given = [f"dataset={folder}/shop.yaml", "encoding=vocab", "dense.transform=none", "encoding.min_count=2"]
    made: dict[str, Manifest] = {}
    for day, first in enumerate((0, 10, 50), 1):
        write_day(folder / f"{day}.tsv", first)
        files = [f"input.train={folder}/{day}.tsv", "split.val=0.25"]
        parent = f"encoding.grow_from={folder}/day{day - 1}" if day > 1 else "encoding.day=1"
        more = ["encoding.capacity=42"] if day == 3 else []
        made[f"day{day}"] = run(folder / f"day{day}", *given, *files, parent, *more)
    first = made["day1"].folder
    for name, day in (("third_as_day1", 3), ("as_day1", 2)):
        second = [f"dataset={folder}/shop.yaml", f"input.train={folder}/{day}.tsv", "split.val=0.25"]
        made[name] = run(folder / name, *second, "encoding=from_dataset", f"encoding.path={first}")
    made["other"] = run(folder / "other", *given[:2], *second[1:], "encoding.day=2", *given[2:3])
    return made


@pytest.fixture(scope="module")
def models(days: dict[str, Manifest], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    for day in ("day1", "day3"):
        train_here(
            folder / day, f"data.path={days[day].folder}", "trainer.max_steps=2", "tables.embedding_dim=4"
        )
    return {day: folder / day for day in ("day1", "day3")}


def measure(model: Path, manifest: Manifest) -> dict[str, float]:
    keys = [f"checkpoint={model}", f"data.path={manifest.folder}", "split=val", "threads=1"]
    metrics = evaluate_checkpoints(compose_config("evaluate", EvaluateConfig, keys)).models[0].metrics
    return {name: value for name, value in metrics.items() if name not in CLOCK}


def scores(model: Path, manifest: Manifest, output: Path) -> list[float]:
    keys = [f"model={model}", f"data.path={manifest.folder}", "split=val", f"output={output}", "threads=1"]
    predict(compose_config("predict", PredictConfig, keys))
    found: list[float] = pq.read_table(output)["score"].to_pylist()
    return found


def test_a_model_reads_a_later_day_as_its_own_vocabulary_would_have_encoded_it(
    days: dict[str, Manifest], models: dict[str, Path], tmp_path: Path
) -> None:
    assert not table_of(days["day2"], "val").equals(table_of(days["as_day1"], "val"))
    for day, own in (("day2", "as_day1"), ("day3", "third_as_day1")):
        assert measure(models["day1"], days[day]) == measure(models["day1"], days[own])
    later = scores(models["day1"], days["day2"], tmp_path / "later.parquet")
    assert later == scores(models["day1"], days["as_day1"], tmp_path / "own.parquet")


def test_each_pair_of_days_is_related_as_it_was_grown(days: dict[str, Manifest]) -> None:
    columns = {name: describe_columns(manifest) for name, manifest in days.items()}
    assert relate(columns["day1"], columns["as_day1"]).kind == "same"
    assert [relate(columns["day1"], columns[name]).kind for name in ("day2", "day3", "other")] == [
        "newer",
        "newer",
        "other",
    ]
    assert (relate(columns["day3"], columns["day2"]).kind, relate(columns["day3"], columns["day2"]).day) == (
        "older",
        2,
    )
    assert column_problems(columns["day2"], days["day1"], FEATURES, takes=("older",)) == []
    assert column_problems(columns["day1"], days["day3"], FEATURES, takes=("newer",)) == []
    assert column_problems(columns["day1"], days["day2"], FEATURES) == [
        "item: its vocabulary is of day 2, the model's of day 1",
        "basket: its vocabulary is of day 2, the model's of day 1",
    ]


def test_ids_given_again_and_other_lineages_are_refused_by_name(
    days: dict[str, Manifest], models: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(
        DataError, match="item: ids of its vocabulary were given to other values since, on day 3"
    ):
        measure(models["day3"], days["day2"])
    with pytest.raises(DataError, match=r"item: its vocab/item.parquet holds other values"):
        measure(models["day1"], days["other"])
    with pytest.raises(DataError, match=r"item: ids .* to other values since[^$]*encoding=from_dataset"):
        scores(models["day3"], days["day2"], tmp_path / "scores.parquet")
    keys = [f"checkpoint={models['day1']}", f"data.path={days['day2'].folder}", f"output={tmp_path}/export"]
    with pytest.raises(DataError, match="item: its vocabulary is of day 2, the model's of day 1"):
        export_model(compose_config("export", ExportConfig, keys))
    resumed = [
        f"data.path={days['day2'].folder}",
        "resume=auto",
        "trainer.max_steps=3",
        "tables.embedding_dim=4",
    ]
    with pytest.raises(DataError, match="was trained on another dataset"):
        train_here(models["day1"], *resumed)
