"""Choices of earlier versions are refused with what to type now."""

from typing import Any

import pytest

from dlrm_app.config.datasets import PreprocessConfig
from dlrm_app.config.generate import GenerateConfig
from dlrm_app.config.like_train import PlanConfig
from dlrm_app.config.train import TrainConfig
from dlrm_app.errors import ConfigError
from tests.composed import compose_config


@pytest.mark.parametrize(
    ("command", "schema", "gone", "problem"),
    [
        (
            "preprocess",
            PreprocessConfig,
            "dataset=criteo_practice",
            "is written by dlrm-generate beside its log: give that file, as dataset=LOG.tsv.yaml",
        ),
        ("train", TrainConfig, "experiment=merlin_tiny", "is a part of a preset now: give merlin=tiny, and"),
        ("plan", PlanConfig, "tables=merlin_jumbo", "is a part of a preset now: give merlin=jumbo, and"),
        (
            "generate",
            GenerateConfig,
            "experiment=merlin_small",
            "is a part of a preset now: give merlin=small,",
        ),
    ],
)
def test_the_message_names_the_replacement(command: str, schema: Any, gone: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        compose_config(command, schema, [gone])
    assert any(f"{gone} {problem}" in str(each) for each in refusal.value.problems)
