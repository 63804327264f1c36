"""Settings that a user is told to type are read as what they say, through a shell too."""

import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.config.train import TrainConfig
from dlrm_app.typed import setting
from tests.composed import compose_config


def test_plain_values_stay_as_they_are() -> None:
    assert setting("output", "out/my_run-1") == "output=out/my_run-1"
    assert setting("output", "my run") == "'output=my run'"
    assert setting("encoding.shared", [["item", "seen"]]) == "'encoding.shared=[[item,seen]]'"


@pytest.mark.parametrize(
    "name",
    [
        *("a=b", "my [1]", "it's", 'a "b"', "a,b", "(1)", "données", "null"),
        *("x\\", "#1", "a: b", "0E0", "007", "1_000", "NaN"),
    ],
)
def test_a_name_is_read_back(name: str) -> None:
    (typed,) = shlex.split(setting("output", name))
    assert compose_config("train", TrainConfig, ["data.path=x", typed]).output == name


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="$~"), min_size=1))
def test_a_text_is_read_back(text: str) -> None:
    (typed,) = shlex.split(setting("output", text))
    value = OverridesParser.create().parse_override(typed).value()
    assert str(value) == text
