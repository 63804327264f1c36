"""Dataset specs: what they may say, and every fault at once."""

from typing import Any

import pytest

from dlrm_app.config.datasets import DatasetConfig
from dlrm_app.errors import ConfigError
from dlrm_app.logs.read_spec import read_spec
from tests.preprocessing.running import spec_of


def config_of(columns: list[Any], **settings: Any) -> DatasetConfig:
    return DatasetConfig(**{"name": "mine", "delimiter": ",", **settings}, columns=columns)


GOOD = [{"name": "y", "role": "label"}, {"name": "a", "role": "sparse", "kind": "hex"}]


@pytest.mark.parametrize("dataset", ["criteo_kaggle", "criteo_1tb"])
def test_criteo_has_13_integers_and_26_ids(dataset: str) -> None:
    spec = spec_of(dataset)
    assert [column.name for column in spec.dense] == [f"int_{place}" for place in range(13)]
    assert [column.name for column in spec.sparse] == [f"cat_{place}" for place in range(26)]
    assert (spec.label, spec.delimiter, spec.header) == ("label", "\t", False)
    assert len(spec.without_label().columns) == 39


def given(**entry: Any) -> list[Any]:
    return [*GOOD, {"name": "b", **entry}]


@pytest.mark.parametrize(
    ("columns", "settings", "part"),
    [
        (GOOD, {"delimiter": ";;"}, "dataset.delimiter must be one ASCII character"),
        (GOOD, {"delimiter": "e"}, "dataset.delimiter must be one ASCII character that no number holds"),
        (GOOD, {"quote": ","}, "dataset.quote must differ from dataset.delimiter"),
        ([*GOOD, "b"], {}, "dataset.columns[2] must be a mapping with name and role, got 'b'"),
        (given(name=["b"], role="dense"), {}, "dataset.columns[2] must be a mapping with name and role"),
        (
            given(role="dence"),
            {},
            "role must be one of label, weight, dense, sparse, element_weights, vector, time, ignore, got 'dence'",
        ),
        (given(role="dense", kind="hex"), {}, "must be one of integer, float, score, got 'hex'"),
        (given(role="ignore", knd=1), {}, "knd is not a key of a column"),
        (given(role="time", kind="iso", offset="+01:00"), {}, "times are in UTC, or name their offset"),
        (given(name="a", role="sparse", kind="hex"), {}, "dataset.columns names two columns a"),
        (given(role="label"), {}, "dataset.columns gives y and b the role label: say dataset.label"),
        (GOOD, {"label": "a"}, "dataset.label must be a column with the role label, y, got 'a'"),
        (
            given(name="../a", role="sparse", kind="hex"),
            {},
            "dataset.columns has a column '../a', and a column also names a file",
        ),
        ([{**GOOD[1], "separator": ","}], {}, "separator must be one ASCII character that nothing else uses"),
        (given(role="dense", kind="float", separator="|"), {}, "separator is for sparse"),
        (given(role="sparse", kind="hex", last=3), {}, "last must be a number of elements"),
        (given(role="time", format="%d/%m %H"), {}, "format must have a year (%Y or %y), a month"),
        (given(role="time", format="%Y-%m-%d %j"), {}, "format knows no %j: use %Y %y %m"),
        (given(role="time", format="%Y-%m-%d %I"), {}, "format must have %H, or %I with %p"),
        (given(role="time", format="%Y-%m-%d%"), {}, "format must not end with %"),
        (given(role="time", format="%Y-%m-%d of the calendar of Gregory"), {}, "at most 24 marks"),
        (given(role="time", kind="iso", format="%Y-%m-%d"), {}, "kind of a time column must be one of"),
        (given(role="dense", kind="float", format="%Y-%m-%d"), {}, "format is for columns with role: time"),
        (
            given(role="time", kind="formatted"),
            {},
            "must be one of seconds, milliseconds, microseconds, nanoseconds, iso, got",
        ),
        (given(role="sparse", kind="hex", separator="|", first=0), {}, "first must be a number of elements"),
        (given(role="sparse", kind="hex", separator="|", first=3, last=3), {}, "cut a list at both ends"),
    ],
)
def test_a_spec_that_cannot_work_is_refused(columns: list[Any], settings: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_spec(config_of(columns, **settings))
    assert part in str(caught.value)


def test_every_fault_comes_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        read_spec(config_of([{"name": "a", "role": "x"}, {"name": "b", "role": "y"}], delimiter=""))
    assert len(caught.value.problems) == 3


def test_the_chosen_label_of_several_is_read() -> None:
    spec = read_spec(config_of([*GOOD, {"name": "z", "role": "label"}], label="z"))
    assert (spec.label, [column.role for column in spec.columns]) == ("z", ["ignore", "sparse", "label"])
    assert [column.name for column in spec.without_label().columns] == ["a"]
