"""What ``experiment=auto`` stands for: a recipe by the manifest alone, below what is typed."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from dlrm_app.api.auto_recipe import MOST_CROSSED, MOST_DOTS, auto_settings, choose_recipe, without_typed
from dlrm_app.config.reference import as_typed
from dlrm_app.config.train import TrainConfig
from dlrm_app.config.words import read_sweep
from dlrm_app.dataset.manifest import LearntLabel, Manifest, SparseColumn, write_manifest
from dlrm_app.dataset.splits import Shard, Split
from dlrm_app.distributed.ranks import Ranks
from dlrm_app.training.validation import check_training
from tests.composed import compose_config
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
    tmp_path: Path,
    small: Manifest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    rows: int,
    num_ranks: int,
    experiment: str,
) -> None:
    train = Split(rows, rows // 4, 0, [Shard("train/part-00000.parquet", rows, 1, "", [rows])])
    (tmp_path / "set").mkdir()
    write_manifest(tmp_path / "set", replace(small, dataset=name, splits={"train": train}))
    dataset = f"data.path='{tmp_path}/set'"
    monkeypatch.setenv("WORLD_SIZE", str(num_ranks))
    with caplog.at_level(logging.INFO):
        config = composed_with_recipe([dataset])
    assert f"experiment=auto takes {experiment} for {rows:,} rows: tables=dataset model=" in caplog.text
    check_training(config, Ranks(0, 0, num_ranks, num_ranks, "cpu"))
    batch = config.trainer.global_batch_size
    named = [dataset, f"experiment={experiment}", f"trainer.global_batch_size={batch}"]
    assert config == compose_config("train", TrainConfig, named)
    assert rows // batch >= 100


def test_linear_decay_is_the_defaults_with_rates_falling_to_0() -> None:
    words = [
        "trainer.epochs=1",
        "trainer.tf32=true",
        "schedule=polynomial",
        "schedule.sparse.power=1",
        "schedule.dense.power=1",
    ]
    recipe = compose_config("train", TrainConfig, ["data.path=x", "experiment=linear_decay"])
    assert recipe == compose_config("train", TrainConfig, ["data.path=x", "experiment=null", *words])


def test_tables_that_few_rows_never_fill_keep_the_plain_width(small: Manifest) -> None:
    """A million hashed ids at the recipe's width would be a checkpoint of hundreds of MB for 7,000 rows."""
    columns = [replace(column, num_embeddings=2_000_000) for column in small.sparse]
    assert choose_recipe(replace(small, sparse=columns), 64)[0] == "linear_decay"


@pytest.mark.parametrize(
    ("typed", "changes", "left_out"),
    [
        ("tables=dataset optimizer=adagrad model=dlrm", "", "tables optimizer model"),
        ("trainer.global_batch_size=256 trainer.epochs=3", "", "trainer.global_batch_size trainer.epochs"),
        ("optimizer.sparse.lr=0.5", "", "optimizer.sparse.lr"),
        ("optimizer.dense.kind=sgd", "", "optimizer.dense.kind optimizer.dense.lr"),
        (
            "optimizer=sgd optimizer.sparse.lr=2",
            "",
            "optimizer optimizer.sparse.lr optimizer.dense.kind optimizer.dense.lr",
        ),
        ("schedule=constant", "", "schedule schedule.sparse.power schedule.dense.power"),
        ("model=dcn", "tables.embedding_dim=16", "model model.ensemble_size model.bottom_mlp model.top_mlp"),
        ("model.ensemble_size=1", "tables.embedding_dim=16", "model.ensemble_size"),
        ("tables.embedding_dim=96", "", "tables.embedding_dim"),
        ("tables.embedding_dim=8", "model.ensemble_size=1", "tables.embedding_dim model.ensemble_size"),
    ],
)
def test_a_typed_word_drops_settings_that_fit_only_the_recipes_value(
    small: Manifest, typed: str, changes: str, left_out: str
) -> None:
    """``changes``: what, typed too behind what is left of the recipe, makes the same configuration."""
    dataset, words = f"data.path='{small.path}'", typed.split()
    _, recipe = choose_recipe(small, 64)
    assert recipe.keys() - without_typed(recipe, typed_of(words)).keys() == set(left_out.split())
    config = composed_with_recipe([dataset, *words])
    assert config.problems() == []
    kept = [f"{key}={as_typed(value)}" for key, value in recipe.items() if key not in left_out.split()]
    assert config == compose_config("train", TrainConfig, [dataset, *kept, *words, *changes.split()])
    check_training(config, Ranks(0, 0, 1, 1, "cpu"))


def test_typed_tables_drop_the_recipes_tables_and_ensemble(
    small: Manifest,
) -> None:
    _, recipe = choose_recipe(small, 64)
    taken = without_typed(recipe, {"tables": "mine_0a1b"})
    tables = {"tables", "tables.embedding_dim", "tables.init", "tables.init_scale"}
    assert recipe.keys() - taken.keys() == {*tables, "model.ensemble_size"}
    assert taken["optimizer.sparse.lr"] == 0.1


def test_many_features_are_crossed_and_not_multiplied_in_pairs(small: Manifest) -> None:
    many = [replace(small.sparse[0], name=f"c{number}") for number in range(MOST_DOTS + 1)]
    _, recipe = choose_recipe(replace(small, sparse=many), 64)
    assert (recipe["model"], recipe["model.ensemble_size"]) == ("dcn", 1)
    assert choose_recipe(replace(small, sparse=many[1:]), 64)[1]["model"] == "dlrm"


def test_few_columns_without_lists_are_crossed(tmp_path: Path) -> None:
    few = write_dataset(tmp_path / "set", rows={"train": 700, "val": 64}, multi_hot=())
    _, recipe = choose_recipe(few, 64)
    assert recipe["model"] == "dcn_parallel"
    check_training(composed_with_recipe([f"data.path='{few.path}'"]), Ranks(0, 0, 1, 1, "cpu"))
    fitting = MOST_CROSSED - len(few.sparse)
    for number in (fitting, fitting + 1):
        dense = [replace(few.dense[0], name=f"i{place}") for place in range(number)]
        model = choose_recipe(replace(few, dense=dense), 64)[1]["model"]
        assert model == ("dcn_parallel" if number == fitting else "dlrm")
    tuned = composed_with_recipe(
        [f"data.path='{few.path}'", "model.dropout=0.1", "model.ensemble_size=1"]
    ).model
    assert (tuned.kind, tuned.dropout, tuned.ensemble_size) == (
        "dcn_parallel",
        0.1,
        1,
    )  # as dlrm-tune's trials
    lists = [replace(few.sparse[0], name="seen", multi_hot=True), *few.sparse]
    assert choose_recipe(replace(few, sparse=lists), 64)[1]["model"] == "dlrm"


def test_vectors_of_numbers_bend_where_there_is_nothing_else(tmp_path: Path) -> None:
    few = write_dataset(tmp_path / "set", rows={"train": 700, "val": 64}, multi_hot=())
    buckets = [replace(each, encoding={"kind": "bucket"}) for each in few.sparse]
    for rows, sparse, knots in ((48_000, buckets, 16), (47_999, buckets, None), (48_000, few.sparse, None)):
        train = Split(rows, rows // 4, 0, [Shard("train/part-00000.parquet", rows, 1, "", [rows])])
        _, recipe = choose_recipe(replace(few, sparse=sparse, splits={"train": train}), 64)
        assert recipe.get("model.dense_knots") == knots


@pytest.mark.parametrize(
    "word", ["model.bottom_mlp=[32]", "model.dense_embedding_dim=8", "model=dlrm", "model.experts.mlp=[8]"]
)
def test_typed_settings_of_the_dlrm_keep_the_recipes_model(tmp_path: Path, word: str) -> None:
    few = write_dataset(tmp_path / "set", rows={"train": 700, "val": 64}, multi_hot=())
    words = [f"data.path='{few.path}'", word]
    named = [*words, "experiment=small_clicks", "trainer.global_batch_size=64"]
    assert composed_with_recipe(words) == compose_config("train", TrainConfig, named)


def test_lists_that_repeat_a_column_attend_to_it(small: Manifest) -> None:
    vocabulary = {"kind": "vocab", "checksum": "x"}
    both = [SparseColumn("item", 9, vocabulary), SparseColumn("seen", 9, vocabulary, multi_hot=True)]
    assert choose_recipe(replace(small, sparse=both), 64)[1]["tables.pooling"] == "attention"
    assert "tables.pooling" not in choose_recipe(small, 64)[1]


def test_several_labels_are_balanced(small: Manifest) -> None:
    labels = [LearntLabel(small.label or ""), LearntLabel("order")]
    assert choose_recipe(replace(small, labels=labels), 64)[1]["trainer.balance_labels"] is True
    assert "trainer.balance_labels" not in choose_recipe(small, 64)[1]


def test_typed_lanes_divide_the_recipes_batch(small: Manifest) -> None:
    config = composed_with_recipe([f"data.path='{small.path}'", "data.lanes=24"])
    assert config.trainer.global_batch_size == 48


@pytest.mark.parametrize(
    "word", ["experiment=null", "sharding.plan=plan.yaml", "data.path=nowhere", "data.path=one,another"]
)
def test_words_that_choose_for_themselves_get_no_recipe(small: Manifest, word: str) -> None:
    assert auto_settings(typed_of([f"data.path='{small.path}'", word])) == {}


def test_each_run_of_a_sweep_has_the_recipe_below_its_own_values(small: Manifest) -> None:
    given = [f"data.path='{small.path}'", "trainer.seed=0,1", "model=dlrm,dcn"]
    settings = auto_settings(typed_of(given))
    assert settings["optimizer"] == "adagrad"
    assert "model.ensemble_size" not in settings


def typed_of(words: list[str]) -> dict[str, object]:
    """The settings that ``words`` give, which may have several values."""
    return dict(read_sweep(words, TrainConfig, "train")[0].keys)


def composed_with_recipe(words: list[str]) -> TrainConfig:
    return compose_config("train", TrainConfig, words, complete=auto_settings)
