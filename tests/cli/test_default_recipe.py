"""What dlrm-train, and dlrm-bench, make of a command line that names no recipe."""

import logging

import pytest

from dlrm_app.cli.default_recipe import with_default_recipe
from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from tests.loader.dataset_fixture import write_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("default recipe") / "a b"
    write_dataset(folder, rows={"train": 7000, "val": 64})
    return f"data.path='{folder}'"


@pytest.mark.parametrize(
    "more", [["tables=dataset"], ["trainer.epochs=3", "output=run"], ["trainer.seed=0,1"]], ids=" ".join
)
def test_the_recipe_comes_first_so_that_what_is_typed_wins(
    dataset: str, more: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        words = with_default_recipe([dataset, *more])
    assert words == ["experiment=small_clicks", "trainer.global_batch_size=64", dataset, *more]
    assert "experiment=small_clicks, for 7,000 rows" in caplog.text
    if "seed" not in more[0]:
        config = compose_config("train", TrainConfig, words)
        assert config.model.ensemble_size == 3
        assert config.trainer.epochs == (3 if "output=run" in more else 1)


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
def test_what_chooses_is_left_as_it_is(dataset: str, more: list[str]) -> None:
    given = [dataset, *more]
    assert with_default_recipe(given) == given
