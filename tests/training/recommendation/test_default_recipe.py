"""Which recipe dlrm-train takes by itself, by the manifest alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.manifest import Manifest, Shard, Split, read_manifest, write_manifest
from dlrm_app.distributed.ranks import Ranks
from dlrm_app.tables.specs import Table
from dlrm_app.training.recommendation.adjustments import batch_setting, training_bytes
from dlrm_app.training.recommendation.default_recipe import default_recipe, leaves_the_choice
from dlrm_app.training.validation import check_training
from tests.loader.dataset_fixture import write_dataset


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return write_dataset(tmp_path_factory.mktemp("default") / "small", rows={"train": 128, "val": 64})


def dataset_of(folder: Path, like: Manifest, name: str, rows: int) -> Manifest:
    """A folder whose manifest tells of so many rows: no more is read."""
    train = Split(rows, rows // 4, 0, [Shard("train/part-00000.parquet", rows, 1, "", [rows])])
    folder.mkdir()
    write_manifest(folder, replace(like, dataset=name, splits={"train": train}))
    return read_manifest(folder)


@pytest.mark.parametrize(
    ("name", "rows", "num_ranks", "experiment"),
    [
        ("criteo_kaggle", 137_000, 1, "kaggle_small"),
        ("criteo_kaggle", 400_000, 4, "small_clicks"),
        ("clicks", 20_000, 3, "small_clicks"),
        ("clicks", 5_000_000, 2, None),
        ("criteo_kaggle", 36_000_000, 1, None),  # kaggle_full takes many epochs, and days on CPU
    ],
)
def test_small_data_gets_its_recipe_and_large_data_rates_that_fall(
    tmp_path: Path, small: Manifest, name: str, rows: int, num_ranks: int, experiment: str | None
) -> None:
    manifest = dataset_of(tmp_path / "set", small, name, rows)
    chosen = default_recipe(manifest, num_ranks)
    config = compose_config("train", TrainConfig, [*chosen.words, f"data.path={manifest.path}"])
    check_training(config, Ranks(0, 0, num_ranks, num_ranks, "cpu"))
    assert [word for word in chosen.words if word.startswith("experiment=")] == (
        [f"experiment={experiment}"] if experiment else []
    )
    assert (config.model.ensemble_size > 1) == (experiment is not None)
    assert (config.trainer.epochs, config.schedule.sparse.kind) == (1, "polynomial")
    assert f"{rows:,} rows" in chosen.why
    assert (experiment or "fall to 0") in chosen.why


def test_tables_that_few_rows_never_fill_keep_the_plain_width(tmp_path: Path, small: Manifest) -> None:
    """A million hashed ids at the recipe's width would be a checkpoint of hundreds of MB for 10,000 rows."""
    columns = [replace(column, num_embeddings=2_000_000) for column in small.sparse]
    manifest = dataset_of(tmp_path / "set", replace(small, sparse=columns), "clicks", 10_000)
    assert not any(word.startswith("experiment=") for word in default_recipe(manifest, 1).words)


@pytest.mark.parametrize(
    ("key", "is_left"),
    [
        *(
            (key, False)
            for key in ("experiment", "model", "optimizer.sparse.lr", "trainer.global_batch_size")
        ),
        *(
            (key, True)
            for key in ("trainer.epochs", "trainer.seed", "sharding.max_shards", "resume", "models")
        ),
    ],
)
def test_whoever_sets_what_a_recipe_sets_gets_just_that(key: str, is_left: bool) -> None:
    assert leaves_the_choice(["data.path", key]) == is_left


@pytest.mark.parametrize("rows", [64, 1000, 36_000, 137_000, 10_000_000])
@pytest.mark.parametrize("batch_size", [256, 512, 2048, 65536])
@pytest.mark.parametrize("ranks", [1, 6, 48])
def test_a_batch_can_be_dealt_and_leaves_steps_enough(rows: int, batch_size: int, ranks: int) -> None:
    lanes = next(lanes for lanes in range(64, 200) if lanes % ranks == 0)
    size = int(batch_setting(batch_size, rows, ranks).value or batch_size)
    assert size % lanes == 0
    assert size <= max(batch_size, lanes)
    assert size == lanes or rows // size >= 100


def test_bytes_are_those_of_weights_and_optimizer_state() -> None:
    tables = [Table("t_a", 1000, 16, ("a",)), Table("t_b", 10, 8, ("b",), data_type="fp16")]
    expected = {"sgd": 4 * 16000 + 2 * 80, "adagrad": 8 * 16000 + 6 * 80}
    expected["rowwise_adagrad"] = expected["sgd"] + 4 * 1010
    for kind, size in expected.items():
        config = compose_config("train", TrainConfig, ["data.path=x", f"optimizer={kind}"])
        assert training_bytes(tables, config) == size
