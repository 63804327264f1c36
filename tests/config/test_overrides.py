"""Overrides are checked against the schema before anything is composed."""

import shlex
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from dlrm_app.config.datasets import PreprocessConfig
from dlrm_app.config.generate import GenerateConfig
from dlrm_app.config.predict import PredictConfig
from dlrm_app.config.train import TrainConfig
from dlrm_app.config.words import read_sweep
from dlrm_app.errors import ConfigError
from tests.composed import compose_config, read_words

_LEVELS = [
    f"{name}: &{name} [{','.join([below] * 9)}]"
    for below, name in zip(["1", *(f"*{n}" for n in "abcdefgh")], "abcdefghi", strict=True)
]
EXPLOSIONS = ("\n".join(_LEVELS), "specs: &a [*a]")
"""A few hundred bytes that stand for 9**9 values, and a list that holds itself."""


COMMANDS: dict[str, tuple[type[Any], list[str]]] = {
    "train": (TrainConfig, ["data.path=x"]),
    "preprocess": (PreprocessConfig, ["input.train=x", "output=y"]),
    "predict": (PredictConfig, ["model=m", "output=s.parquet"]),
    "generate": (GenerateConfig, ["output=x"]),
}


def problems_of(*overrides: str) -> list[str]:
    """The problems as they are printed: these tests are about what they say to type."""
    with pytest.raises(ConfigError) as caught:
        compose_config("train", TrainConfig, list(overrides))
    return [*map(str, caught.value.problems)]


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        *(
            (f"{typed}=3", f"{typed} is not a known key: did you mean {key}?")
            for typed, key in (
                ("batch_size", "trainer.global_batch_size"),
                ("learning_rate", "optimizer.sparse.lr"),
                ("dataset", "data.path"),
                ("trainer.epoch", "trainer.epochs"),
                ("embeding_dim", "tables.embedding_dim"),
                ("trainer.batch_size", "trainer.global_batch_size"),
                ("lanes", "data.lanes"),
            )
        ),
        ("+model.typo=8", "model.typo is not a known key"),
        ("sharding.types=[1,", "lists are written 'key=[a,b]'"),
        ("tables=nowhere/mine.yaml", "tables=nowhere/mine.yaml does not exist"),
        ("model=null", "model=null is not known: choose one of "),
        ("~trainer.max_steps", "moves or deletes a key: write trainer.max_steps=null"),
        ("model@foo=dcn", "model@foo=dcn moves or deletes a key: write model=dcn"),
        ("hydra/launcher=joblib", "Could not find 'hydra/launcher/joblib': pip install"),
        (
            "+hydra.callbacks.x={_target_: os.system}",
            "is not one of Hydra's settings that can be set: use hydra/launcher, ",
        ),
        (
            "hydra.launcher._target_=os.system",
            "is not one of Hydra's settings that can be set: use hydra/launcher, ",
        ),
    ],
)
def test_a_typing_error_is_refused_with_its_correction(typed: str, problem: str) -> None:
    """Hydra would take model@foo=dcn for a choice of its own."""
    (found,) = problems_of("data.path=x", typed)
    assert problem in found


@pytest.mark.parametrize(
    ("command", "typed", "key", "value"),
    [
        ("train", "+model=dcn", "model.kind", "dcn"),
        ("train", "data.path=~/clicks", "data.path", "/home/ada/clicks"),
        ("train", "data.path='~/my clicks'", "data.path", "/home/ada/my clicks"),
        ("preprocess", "input.train=[~/a,~/b]", "input.train", ["/home/ada/a", "/home/ada/b"]),
        # a folder, which is no choice of the group conf/encoding
        ("predict", "encoding=days", "encoding", "days"),
        ("predict", "encoding=export/encoding", "encoding", "export/encoding"),
        (
            "train",
            "sharding.tables={t_*:{types:[row_wise]},t_b:{min_partition:8}}",
            "sharding.tables",
            {"t_*": {"types": ["row_wise"]}, "t_b": {"min_partition": 8}},
        ),
    ],
)
def test_a_typed_value_arrives_unchanged(
    command: str, typed: str, key: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    schema, given = COMMANDS[command]
    assert attrgetter(key)(compose_config(command, schema, [*given, typed])) == value


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        ("data.path = x", "no spaces around ="),
        ("data.path= x", "no spaces around ="),
        ("out/clean", "did you mean data.path=out/clean?"),
        ("data.path=x a/b", "did you mean output=a/b?"),
    ],
)
def test_after_a_word_without_a_key_nothing_is_called_missing(words: str, cure: str) -> None:
    *problems, last = problems_of(*words.split(), "modle=dcn")
    assert last == "modle is not a known key: did you mean model?"
    assert cure in problems[0]
    assert all("is not key=value" in problem for problem in problems)


RECIPE = """# @package _global_
defaults:
  - override /model: dcn
trainer:
  epochs: 2
"""


@pytest.mark.parametrize("text", [RECIPE, RECIPE.split("\n", 1)[1]])
def test_a_recipe_may_be_a_file_of_ones_own(text: str, tmp_path: Path) -> None:
    """It sets keys of all sections and chooses from groups; what is typed besides wins."""
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    config = compose_config(
        "train", TrainConfig, ["data.path=x", f"experiment={file}", "model.ensemble_size=3"]
    )
    assert (config.model.kind, config.model.ensemble_size, config.trainer.epochs) == ("dcn", 3, 2)


@pytest.mark.parametrize(
    ("group", "text", "expected"),
    [
        (
            "topology",
            "memory_gb: 24",
            "topology.memory_gb is not a known key: did you mean topology.memory_gib?",
        ),
        ("topology", "nodes: two", "topology.nodes must be a whole number, got 'two'"),
        ("topology", "- nodes", "must hold keys and their values"),
        ("model", "kind: [", "is not readable YAML"),
        *(
            ("tables", aliases, "is not readable YAML: its aliases (*name) stand for")
            for aliases in EXPLOSIONS
        ),
        (
            "experiment",
            "trainer: {epoch: 2}",
            "trainer.epoch is not a known key: did you mean trainer.epochs?",
        ),
    ],
)
def test_problems_in_a_file_name_it_beside_all_others(
    group: str, text: str, expected: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    typo, problem = problems_of("data.pat=x", f"{group}={file}")
    assert "did you mean data.path?" in typo
    assert str(file) in problem
    assert expected in problem


@pytest.mark.parametrize(
    ("choice", "text", "said"),
    [
        ("experiment", "hydra: {callbacks: {x: {_target_: os.system}}}", "hydra"),
        ("experiment", "defaults:\n  - override /hydra/launcher: joblib", "hydra"),
        ("experiment", "defaults:\n  - /hydra/callbacks: x", "hydra"),
        ("tables", "hydra: {}", "hydra"),
        ("tables", "defaults: 5\nembedding_dim: 8", "defaults must be a list"),
    ],
)
def test_a_users_file_reaches_neither_hydra_nor_any_code(
    tmp_path: Path, choice: str, text: str, said: str
) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    (problem,) = problems_of("data.path=x", f"{choice}={tmp_path}/mine.yaml")
    assert said in problem


def test_a_path_may_have_target_in_its_name() -> None:
    assert read_words(TrainConfig, "train", ["output=the_target_run"]) == {"output": "the_target_run"}


@pytest.mark.parametrize(
    "path",
    ["a=b", "my [1]", "it's", "~x", "(1)", "{day}/x", "s3://b/k?x=1&y<2", "é.tsv", "a {b}, c=d", "=", "a#b"],
)
def test_a_text_that_hydra_cannot_read_is_taken_as_typed(path: str) -> None:
    assert compose_config("train", TrainConfig, [f"data.path={path}"]).data.path == path
    files = compose_config("preprocess", PreprocessConfig, [f"input.train={path}", "output=y"])
    assert files.input.train == path


def test_a_list_that_hydra_cannot_read_is_taken_as_typed() -> None:
    typed = ["input.train=[logs/dt=1/a.csv, b (2).csv]", "output=y"]
    config = compose_config("preprocess", PreprocessConfig, typed)
    assert config.input.train == ["logs/dt=1/a.csv", "b (2).csv"]


def test_a_file_of_a_group_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "a=b (1).yaml").write_text("defaults: [dlrm]\nbottom_mlp: [7]")
    typed = ["data.path=x", f"model={tmp_path}/a=b (1).yaml"]
    assert compose_config("train", TrainConfig, typed).model.bottom_mlp == [7]


@pytest.mark.parametrize("typed", ["data.path=[a=b", "data.path='a", 'data.path="a"b', "trainer.epochs=1=2"])
def test_an_unreadable_word_is_refused_with_quotes_that_work(typed: str) -> None:
    (problem,) = problems_of(typed, "data.path=x")
    (word,) = shlex.split(str(problem).rpartition("is written ")[2])
    key, _, value = typed.partition("=")
    assert read_words(TrainConfig, "train", [word]) == {key: value}


def test_values_of_a_sweep_are_checked_one_by_one() -> None:
    words = ["trainer.seed=0,soon", "model=dlrm,dnc", "experiment=null,kaggle_small"]
    sweep, problems = read_sweep(words, TrainConfig, "train")
    assert [key for key, _ in sweep.keys] == ["trainer.seed", "model", "experiment"]
    assert len(problems) == 2
    assert str(problems[0]) == "trainer.seed must be a whole number, got 'soon'"
    assert str(problems[1]).startswith("model=dnc is not known")


@pytest.mark.parametrize(
    ("command", "typed"),
    [("train", "experiment=null"), ("generate", "experiment=null"), ("generate", "tables=null")],
)
def test_a_default_of_null_may_be_typed(command: str, typed: str) -> None:
    schema, given = COMMANDS[command]
    assert compose_config(command, schema, [*given, typed]) == compose_config(command, schema, given)


def test_the_home_folder_may_stand_in_a_file_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    (tmp_path / "mine.yaml").write_text("data: {path: ~/clicks}\noutput: a~/b\n")
    config = compose_config("train", TrainConfig, [f"experiment={tmp_path}/mine.yaml"])
    assert (config.data.path, config.output) == ("/home/ada/clicks", "a~/b")


@pytest.mark.parametrize("name", ["merlin_tiny", "null", "my tables (2)", "x=y"])
def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.yaml"
    path.write_text("specs:\n  - {name: t, rows: 10, features: [a]}\n")
    config = compose_config("train", TrainConfig, ["data.path=x", f'tables="{path}"'])
    assert [spec["name"] for spec in config.tables.specs] == ["t"]
