"""Settings given from Python are the settings of a command line."""

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.api.settings import read_settings
from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.errors import ConfigError
from tests.refusals import refused

NEEDED = {"data.path": "x", "experiment": None}


def composed(*settings: Any, **keywords: Any) -> TrainConfig:
    given, _, problems = read_settings("train", [NEEDED, *settings], keywords)
    return compose_config("train", TrainConfig, given, problems=problems)


def test_words_mappings_and_keywords_say_the_same() -> None:
    typed = composed("model=dcn", "trainer.epochs=2", "model.top_mlp=[64,32]", "output=run")
    assert typed == composed({"model": "dcn", "trainer.epochs": 2, "model.top_mlp": [64, 32]}, output="run")
    nested = {"trainer": {"epochs": 2}}
    assert typed == composed(nested, model="dcn", output=Path("run")) or typed != composed(nested)
    assert composed(nested, {"model.top_mlp": (64, 32)}, model="dcn", output=Path("run")) == typed


def test_later_settings_win() -> None:
    assert composed("trainer.epochs=2", {"trainer.epochs": 3}, trainer={"epochs": 4}).trainer.epochs == 4


def test_values_of_python_and_numpy_are_taken() -> None:
    config = composed(
        {"trainer.epochs": np.int64(3), "optimizer.dense.lr": np.float32(0.5), "trainer.tf32": True}
    )
    assert (config.trainer.epochs, config.optimizer.dense.lr, config.trainer.tf32) == (3, 0.5, True)
    assert composed({"trainer.max_steps": None}).trainer.max_steps is None
    with refused(
        ConfigError,
        "trainer.epochs",
        "takes text, numbers, true or false, None, paths, and lists and mappings of these",
    ):
        composed({"trainer.epochs": object()})
    with refused(ConfigError, "a setting", "must be text as it is typed, or a mapping of keys to values"):
        composed(7)


def test_a_mapping_that_is_a_value_stays_one() -> None:
    tables = {"t_a": {"types": ["row_wise"]}}
    assert composed({"sharding.tables": tables}).sharding.tables == tables
    assert composed({"sharding": {"tables": tables}}).sharding.tables == tables


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12))
def test_any_text_arrives_unchanged(text: str) -> None:
    """Quotes, commas, brackets, equals signs, and what looks like an interpolation or a number."""
    if text.strip() == text and "$" not in text and not text.startswith("~"):
        assert composed({"output": f"runs/{text}"}).output == f"runs/{text}"


def test_an_unknown_key_is_refused_with_its_nearest() -> None:
    with refused(ConfigError, "trainer.epoch", "is not a known key", cure="did you mean trainer.epochs?"):
        composed({"trainer": {"epoch": 2}})
