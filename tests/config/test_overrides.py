"""Overrides are checked against the schema before anything is composed."""

from pathlib import Path

import pytest

from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.errors import ConfigError


def problems_of(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compose_config("train", TrainConfig, list(overrides))
    return caught.value.problems


def test_an_unknown_key_is_refused_with_the_nearest_one() -> None:
    (problem,) = problems_of("data.path=x", "trainer.epoch=3")
    assert problem == "trainer.epoch is not a known key: did you mean trainer.epochs?"


def test_a_key_in_the_wrong_section_is_found_by_its_last_word() -> None:
    (problem,) = problems_of("data.path=x", "lanes=32")
    assert "data.lanes" in problem


def test_a_plus_sign_does_not_smuggle_a_key_in() -> None:
    (problem,) = problems_of("data.path=x", "+model.typo=8")
    assert "model.typo is not a known key" in problem


def test_a_mapping_of_free_keys_can_be_given_whole() -> None:
    given = compose_config(
        "train",
        TrainConfig,
        ["data.path=x", "sharding.tables={t_*:{types:[row_wise]},t_b:{min_partition:8}}"],
    )
    assert given.sharding.tables == {"t_*": {"types": ["row_wise"]}, "t_b": {"min_partition": 8}}


def test_every_problem_comes_at_once() -> None:
    problems = problems_of("trainer.epoch=3", "trainer.seed=soon", "model=dlmr")
    assert len(problems) == 3
    assert "trainer.seed=soon" in problems[1]
    assert "did you mean model=dlrm?" in problems[2]


def test_an_unreadable_override_says_how_to_write_one() -> None:
    (problem,) = problems_of("data.path=[1,")
    assert "key=value" in problem


def test_a_required_value_is_asked_for() -> None:
    assert problems_of() == ["data.path is required and has no default: give data.path=..."]


def test_a_group_takes_the_path_of_a_yaml_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("specs:\n  - {name: t, rows: 3, features: [f]}\n")
    config = compose_config("train", TrainConfig, ["data.path=x", f"tables={file}"])
    assert config.tables.specs == [{"name": "t", "rows": 3, "features": ["f"]}]


def test_a_missing_group_file_is_refused() -> None:
    (problem,) = problems_of("data.path=x", "tables=nowhere/mine.yaml")
    assert "no such file" in problem


def test_impossible_values_are_all_named() -> None:
    config = compose_config(
        "train",
        TrainConfig,
        [
            "data.path=x",
            "trainer.epochs=0",
            "optimizer.sparse.lr=-1",
            "model.kind=dcn",
            "sharding.types=[rowwise]",
        ],
    )
    text = "\n".join(config.problems())
    for key in ("trainer.epochs", "optimizer.sparse.lr", "model.dcn_num_layers", "sharding.types"):
        assert key in text
