"""Choices of earlier versions are refused with what to type now."""

from typing import Any

import pytest

from dlrm_app.config.compose import compose_config
from dlrm_app.config.datasets import PreprocessConfig
from dlrm_app.errors import ConfigError


@pytest.mark.parametrize(
    ("command", "schema", "gone", "problem"),
    [
        (
            "preprocess",
            PreprocessConfig,
            "dataset=criteo_practice",
            "dataset=criteo_practice is written by dlrm-generate beside its log: give that file, as dataset=LOG.tsv.yaml",
        ),
    ],
)
def test_what_replaces_it_is_said(command: str, schema: Any, gone: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        compose_config(command, schema, [gone])
    assert problem in map(str, refusal.value.problems)
