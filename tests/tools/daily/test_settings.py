"""How the settings of a day are compared with those of the day before, and with those that it was begun with."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlrm_app.config.days import as_given, regrouped
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import ConfigError, Problem
from dlrm_app.tools.daily.settings import (
    of_later_days,
    preprocess_settings,
    setting_changes,
    settings_of,
    train_settings,
)
from tests.loader.dataset_fixture import write_dataset
from tests.refusals import refused
from tests.tools.daily.days_here import configured

WORDS = ['input.days="{day}"', "dataset=criteo_kaggle", "output=o", "days.from=2026-11-01"]


def called(*typed: str, parent: Manifest | None = None) -> dict[str, dict[str, Any]]:
    """Command → its settings on the first day, or on a later one after ``parent``."""
    config = configured([*WORDS, *typed])
    day = config.days.days()[0]
    return {
        "preprocess": preprocess_settings(config, day, parent, Path("o")),
        "train": train_settings(config, Path("rows"), None, Path("o")),
    }


def test_a_setting_that_is_no_longer_given_is_named() -> None:
    """The default that composing finds is not what dlrm-train takes: a recipe, or the parent's run, gives another."""
    config = configured(WORDS)
    before, now = (
        called("train.optimizer.sparse.lr=0.05", "train.model=dcn"),
        called("train.model.top_mlp=[8,1]"),
    )
    changes = setting_changes(settings_of(config, before), settings_of(config, now), now)
    assert "train.optimizer.sparse.lr: 0.05 → not given" in changes
    assert 'train.model.kind: "dcn" → not given' in changes
    assert [each for each in changes if each.startswith("train.model.top_mlp:")] != []
    assert "not given" not in "".join(each for each in changes if each.startswith("train.model.top_mlp"))
    changes = setting_changes(settings_of(config, now), settings_of(config, before), before)
    assert not [each for each in changes if each.endswith("not given") and "top_mlp" not in each]


def test_settings_of_the_first_day_alone_are_not_changes_of_later_days(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path / "set", rows={"train": 30, "val": 30})
    parent = replace(manifest, sparse=[replace(each, encoding={"kind": "vocab"}) for each in manifest.sparse])
    config = configured(WORDS)
    typed = ["preprocess.encoding.min_count=3", "preprocess.dense.transform=log1p"]
    first, later = called(*typed), called(*typed, parent=parent)
    before, now = (of_later_days(settings_of(config, each)) for each in (first, later))
    assert setting_changes(before, now, later) == []
    other = called("preprocess.encoding.min_count=4", parent=parent)
    changes = setting_changes(before, of_later_days(settings_of(config, other)), other)
    assert changes == ["preprocess.encoding.min_count: 3 → 4"]


@pytest.mark.parametrize(
    ("command", "key", "expected"),
    [
        ("preprocess", "split.val=0.05", "days.holdout=0.05"),
        ("preprocess", "input.train", "input.days"),
        ("preprocess", "rejects.max_fraction", "preprocess.rejects.max_fraction"),
        ("train", "trainer.global_batch_size", "train.trainer.global_batch_size"),
        ("train", "model=dnc", "train.model=dnc"),
        ("train", "data.path", "data.path"),
        ("preprocess", "log/split.val.csv", "log/split.val.csv"),
        ("preprocess", "dataset.columns", "dataset.columns"),
        ("evaluate", "threads", "threads"),
    ],
)
def test_errors_within_a_day_name_the_key_that_is_typed(command: str, key: str, expected: str) -> None:
    problem = Problem(key, "is wrong", "correct trainer.epochs", 5)
    assert as_given(problem, command) == replace(problem, key=expected)


def test_settings_of_other_commands_are_gathered_however_they_are_given() -> None:
    expected = {"output": "o", "train": {"model": "dcn", "trainer.epochs": 1, "model.top_mlp": [8, 1]}}
    by_key = {"train.model": "dcn", "train.trainer.epochs": 1, "train.model.top_mlp": [8, 1]}
    words = {"train": ["model=dcn", "trainer.epochs=1", "model.top_mlp=[8,1]"]}
    nested = {"train": {"model": "dcn", "trainer": {"epochs": 1}, "model.top_mlp": [8, 1]}}
    for given in (by_key, words, nested):
        assert regrouped({"output": "o", **given}) == expected
    with refused(ConfigError, "train.modle", "is not a known key"):
        regrouped({"train": ["modle=dcn", "a b"]})


def test_words_of_another_command_may_be_typed_as_a_list() -> None:
    typed = ["train=[model=dcn,trainer.epochs=1]", "train.trainer.epochs=2"]
    assert configured([*WORDS, *typed]).train == {"model": "dcn", "trainer.epochs": 2}
