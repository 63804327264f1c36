"""Words that YAML and Hydra read as something else are texts where texts are meant."""

from pathlib import Path

import pytest

from dlrm_app.config.datasets import DatasetConfig, PreprocessConfig
from dlrm_app.config.typed_words import read_dataset_yaml
from dlrm_app.logs.read_spec import read_spec
from tests.composed import compose_config

WORDS = [
    "no",
    "on",
    "Off",
    "yes",
    "true",
    "1e3",
    "12:30",
    "007",
    "0x1F",
    "1_000",
    "1.50",
    "-1",
    "2026-01-02",
]


@pytest.mark.parametrize("word", WORDS)
def test_words_are_texts_as_they_are_typed(word: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        f"name: {word}\nheader: yes\nlabel: {word}\nnull_values: [{word}, 'x']\n"
        f"columns:\n- {{name: {word}, role: label}}\n- {{name: other, role: label}}\n"
        f"- {{name: c, role: sparse, kind: string, separator: '|', padding: {word}, last: 3}}\n"
    )
    config = compose_config(
        "preprocess", PreprocessConfig, [f"dataset={tmp_path}/own.yaml", "input.train=x", "output=x"]
    )
    spec = read_spec(config.dataset)
    assert (spec.name, spec.header, spec.label, spec.null_values) == (word, True, word, (word, "x"))
    assert [(each.padding, each.last) for each in spec.sparse] == [(word, 3)]


def test_labels_and_their_conditions_are_texts() -> None:
    content = read_dataset_yaml(
        "labels: [no, {on: {given: no, loss_weight: 2}}]\npublished_rows: {day_0: 12}"
    )
    assert content == {
        "labels": ["no", {"on": {"given": "no", "loss_weight": 2}}],
        "published_rows": {"day_0": 12},
    }


@pytest.mark.parametrize("word", ["no", "on", "true", "1e3", "1.50", "12:30"])
def test_settings_are_texts_as_they_are_typed(word: str) -> None:
    typed = [
        "dataset=example_csv",
        f"dataset.label={word}",
        f"dataset.null_values=[{word},a]",
        "input.train=x",
        "output=x",
    ]
    dataset: DatasetConfig = compose_config("preprocess", PreprocessConfig, typed).dataset
    assert (dataset.label, dataset.null_values) == (word, [word, "a"])


def test_null_is_both_words_as_before() -> None:
    assert read_dataset_yaml("null_values: [NULL, ~, a]")["null_values"] == [None, None, "a"]
