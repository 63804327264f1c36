"""What ``experiment=auto`` stands for: by the manifest alone, and only where nothing is typed that a recipe sets."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from dlrm_app.cli.auto_recipe import recipe_words, typed_choice, with_recipe
from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.manifest import Manifest, Shard, Split, read_manifest, write_manifest
from dlrm_app.distributed.ranks import Ranks
from dlrm_app.training.validation import check_training
from tests.loader.dataset_fixture import write_dataset


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    folder = tmp_path_factory.mktemp("auto") / "a b"
    return write_dataset(folder, rows={"train": 7000, "val": 64})


@pytest.mark.parametrize(
    ("name", "rows", "num_ranks", "experiment"),
    [
        ("criteo_kaggle", 137_000, 1, "kaggle_small"),
        ("criteo_kaggle", 400_000, 4, "small_clicks"),
        ("clicks", 20_000, 3, "small_clicks"),
        ("clicks", 5_000_000, 2, "linear_decay"),
        ("criteo_kaggle", 36_000_000, 1, "linear_decay"),  # kaggle_full takes many epochs, and days on CPU
    ],
)
def test_the_rows_decide(
    tmp_path: Path, small: Manifest, name: str, rows: int, num_ranks: int, experiment: str
) -> None:
    train = Split(rows, rows // 4, 0, [Shard("train/part-00000.parquet", rows, 1, "", [rows])])
    (tmp_path / "set").mkdir()
    write_manifest(tmp_path / "set", replace(small, dataset=name, splits={"train": train}))
    words = recipe_words(read_manifest(tmp_path / "set"), num_ranks)
    config = compose_config("train", TrainConfig, [*words, f"data.path='{tmp_path}/set'"])
    check_training(config, Ranks(0, 0, num_ranks, num_ranks, "cpu"))
    assert words[0] == f"experiment={experiment}"
    assert (config.model.ensemble_size > 1) == (experiment != "linear_decay")
    assert (config.trainer.epochs, config.schedule.sparse.kind) == (1, "polynomial")
    assert rows // config.trainer.global_batch_size >= 100


def test_linear_decay_is_the_defaults_for_one_epoch_with_rates_that_fall_to_0() -> None:
    words = ["trainer.epochs=1", "schedule=polynomial", "schedule.sparse.power=1", "schedule.dense.power=1"]
    recipe = compose_config("train", TrainConfig, ["data.path=x", "experiment=linear_decay"])
    assert recipe == compose_config("train", TrainConfig, ["data.path=x", "experiment=null", *words])


def test_tables_that_few_rows_never_fill_keep_the_plain_width(small: Manifest) -> None:
    """A million hashed ids at the recipe's width would be a checkpoint of hundreds of MB for 7,000 rows."""
    columns = [replace(column, num_embeddings=2_000_000) for column in small.sparse]
    assert recipe_words(replace(small, sparse=columns), 1)[0] == "experiment=linear_decay"


@pytest.mark.parametrize(
    "more",
    [
        ["tables=dataset"],
        ["trainer.epochs=3", "output=run"],
        ["trainer.seed=0,1"],
        ["experiment=auto"],
    ],
    ids=" ".join,
)
def test_the_recipe_comes_first_so_that_what_is_typed_wins(
    small: Manifest, more: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    dataset = f"data.path='{small.path}'"
    with caplog.at_level(logging.INFO):
        words = with_recipe([dataset, *more])
    typed = [word for word in more if word != "experiment=auto"]
    assert words == ["experiment=small_clicks", "trainer.global_batch_size=64", dataset, *typed]
    assert "takes small_clicks for 7,000 rows: tables=dataset optimizer=adagrad" in caplog.text
    assert "trainer.global_batch_size=64" in caplog.text
    if "output=run" in more:
        config = compose_config("train", TrainConfig, words)
        assert (config.model.ensemble_size, config.trainer.epochs) == (3, 3)


@pytest.mark.parametrize(
    "more",
    [
        ["experiment=null"],
        ["tables=mine.yaml"],
        ["optimizer.sparse.lr=0.1"],
        ["model=dlrm,dcn"],
        ["data.path=nowhere"],
        ["data.path=one,another"],
    ],
    ids=" ".join,
)
def test_what_chooses_is_left_as_it_is(small: Manifest, more: list[str]) -> None:
    given = [f"data.path='{small.path}'", *more]
    assert with_recipe(given) == given


def test_the_log_names_the_typed_setting_that_chooses(
    small: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        with_recipe([f"data.path='{small.path}'", "trainer.seed=1", "optimizer.sparse.lr=0.1"])
    assert "experiment=auto takes no recipe: optimizer.sparse.lr is typed" in caplog.text


def test_only_what_a_recipe_sets_chooses() -> None:
    for key in ("model", "optimizer.sparse.lr", "trainer.global_batch_size"):
        assert typed_choice(["data.path", key]) == key
    assert typed_choice(["trainer.epochs", "trainer.seed", "sharding.types", "resume", "models"]) is None
