"""How the settings of a day are compared with those of the day before, and with those that it was begun with."""

from dataclasses import replace
from pathlib import Path

import pytest

from dlrm_app.config.days import as_typed
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.tools.daily.words import (
    of_later_days,
    preprocess_words,
    setting_changes,
    settings_of,
    train_words,
)
from tests.loader.dataset_fixture import write_dataset
from tests.tools.daily.days_here import configured

WORDS = ['input.days="{day}"', "dataset=criteo_kaggle", "output=o", "days.from=2026-11-01"]


def words_of(*typed: str, parent: Manifest | None = None) -> dict[str, list[str]]:
    config = configured([*WORDS, *typed])
    day = config.days.days()[0]
    return {
        "preprocess": preprocess_words(config, day, parent, Path("o")),
        "train": train_words(config, Path("rows"), None, Path("o")),
    }


def test_a_setting_that_is_no_longer_given_is_named_as_such() -> None:
    """The default that composing finds is not what dlrm-train takes: a recipe, or the parent's run, gives another."""
    config = configured(WORDS)
    before, now = (
        words_of("train.optimizer.sparse.lr=0.05", "train.model=dcn"),
        words_of("train.model.top_mlp=[8,1]"),
    )
    changes = setting_changes(settings_of(config, before), settings_of(config, now), now)
    assert "train.optimizer.sparse.lr: 0.05 → not given" in changes
    assert 'train.model.kind: "dcn" → not given' in changes
    assert [each for each in changes if each.startswith("train.model.top_mlp:")] != []
    assert "not given" not in "".join(each for each in changes if each.startswith("train.model.top_mlp"))
    changes = setting_changes(settings_of(config, now), settings_of(config, before), before)
    assert not [each for each in changes if each.endswith("not given") and "top_mlp" not in each]


def test_what_the_first_day_alone_uses_changes_on_no_later_day(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path / "set", rows={"train": 30, "val": 30})
    parent = replace(manifest, sparse=[replace(each, encoding={"kind": "vocab"}) for each in manifest.sparse])
    config = configured(WORDS)
    typed = ["preprocess.encoding.min_count=3", "preprocess.dense.transform=log1p"]
    first, later = words_of(*typed), words_of(*typed, parent=parent)
    before, now = (of_later_days(settings_of(config, words)) for words in (first, later))
    assert setting_changes(before, now, later) == []
    other = words_of("preprocess.encoding.min_count=4", parent=parent)
    changes = setting_changes(before, of_later_days(settings_of(config, other)), other)
    assert changes == ["preprocess.encoding.min_count: 3 → 4"]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "split.val=0.05 by split.by=content is less than a row",
            "days.holdout=0.05 by split.by=content is less than a row",
        ),
        ("input.train=log/a.csv is empty", "input.days=log/a.csv is empty"),
        (
            "more than rejects.max_fraction=0.001 allows",
            "more than preprocess.rejects.max_fraction=0.001 allows",
        ),
        (
            "fewer than one trainer.global_batch_size (128)",
            "fewer than one train.trainer.global_batch_size (128)",
        ),
        (
            "log/split.val.csv and s3://rejects.max_fraction/a",
            "log/split.val.csv and s3://rejects.max_fraction/a",
        ),
        ("correct dataset.columns", "correct dataset.columns"),
    ],
)
def test_errors_within_a_day_name_what_is_typed(said: str, expected: str) -> None:
    assert as_typed(said) == expected
