"""Overrides are checked against the schema before anything is composed."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from dlrm_app.config.compose import compose_config, conf_dir
from dlrm_app.config.datasets import GenerateConfig, PreprocessConfig
from dlrm_app.config.like_train import PlanConfig
from dlrm_app.config.overrides import check_overrides
from dlrm_app.config.scoring import PredictConfig
from dlrm_app.config.train import TrainConfig
from dlrm_app.errors import ConfigError, Problem

_LEVELS = [
    f"{name}: &{name} [{','.join([below] * 9)}]"
    for below, name in zip(["1", *(f"*{n}" for n in "abcdefgh")], "abcdefghi", strict=True)
]
EXPLOSIONS = ("\n".join(_LEVELS), "specs: &a [*a]")
"""A few hundred bytes that stand for 9**9 values, and a list that holds itself."""


def problems_of(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compose_config("train", TrainConfig, list(overrides))
    return caught.value.problems


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        ("batch_size", "trainer.global_batch_size"),
        ("learning_rate", "optimizer.sparse.lr"),
        ("dataset", "data.path"),
        ("trainer.epoch", "trainer.epochs"),
        ("embeding_dim", "tables.embedding_dim"),
        ("trainer.batch_size", "trainer.global_batch_size"),
    ],
)
def test_everyday_words_are_known_by_the_key_that_they_mean(typed: str, key: str) -> None:
    assert problems_of(f"{typed}=3") == [f"{typed} is not a known key: did you mean {key}?"]


@pytest.mark.parametrize(
    ("words", "problems"),
    [
        (["data.path", "=", "x"], [Problem("data.path = x", "has spaces around =", "write data.path=x")]),
        (["data.path", "=x y"], [Problem("data.path =x y", "has spaces around =", "write 'data.path=x y'")]),
        (
            ["data.path=", "x", "trainer.epochs", "=", "2"],
            [
                Problem("data.path= x", "has spaces around =", "write data.path=x"),
                Problem("trainer.epochs = 2", "has spaces around =", "write trainer.epochs=2"),
            ],
        ),
        (["out/clean"], [Problem("out/clean", "is not key=value", "did you mean data.path=out/clean?")]),
        (
            ["data.path=x", "a/b", "modle=dcn"],
            [
                Problem("a/b", "is not key=value", "did you mean output=a/b?"),
                Problem("modle", "is not a known key", "did you mean model?"),
            ],
        ),
        (
            ["hello"],
            [Problem("hello", "is not key=value", "one with spaces needs quotes, as 'output=my run'")],
        ),
    ],
    ids=str,
)
def test_after_a_word_that_cannot_be_read_nothing_is_called_missing(
    words: list[str], problems: list[Problem], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert problems_of(*words) == list(map(str, problems))


def test_an_empty_value_before_another_setting_is_one() -> None:
    keys = ["data.path=x", "tables.init=", "trainer.epochs=2"]
    assert compose_config("train", TrainConfig, keys).tables.init == ""


def test_a_path_alone_is_offered_for_the_key_that_a_command_needs() -> None:
    for command, schema, key in (
        ("preprocess", PreprocessConfig, "input.train"),
        ("predict", PredictConfig, "model"),
        ("plan", PlanConfig, "data.path"),
        ("generate", GenerateConfig, "output"),
    ):
        with pytest.raises(ConfigError, match=f"did you mean {key}=a/b"):
            check_overrides(["a/b"], schema, conf_dir(), command)


def test_an_earlier_name_is_refused_with_the_new_one() -> None:
    (problem,) = problems_of("data.path=x", "model.members=3")
    assert problem == "model.members is now called model.ensemble_size"


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
    assert problems[1] == "trainer.seed must be a whole number, got 'soon'"
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


def test_a_file_named_like_one_of_ours_is_not_taken_for_it(tmp_path: Path) -> None:
    file = tmp_path / "merlin_tiny.yaml"
    file.write_text("specs:\n  - {name: t, rows: 3, features: [f]}\n")
    config = compose_config("train", TrainConfig, ["data.path=x", f"tables={file}"])
    assert config.tables.specs == [{"name": "t", "rows": 3, "features": ["f"]}]


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
        (
            "topology",
            "nodes: two",
            "topology.nodes must be a whole number, got 'two'",
        ),
        ("topology", "- nodes", "the file must hold keys and their values"),
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
def test_what_is_wrong_in_a_file_is_said_with_its_name_and_all_else(
    group: str, text: str, expected: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    typo, problem = problems_of("data.pat=x", f"{group}={file}")
    assert "did you mean data.path?" in typo
    assert str(file) in problem
    assert expected in problem


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
            "model.bottom_mlp=[0]",
            "sharding.types=[rowwise]",
        ],
    )
    text = "\n".join(map(str, config.problems()))
    for key in ("trainer.epochs", "optimizer.sparse.lr", "model.bottom_mlp", "sharding.types"):
        assert key in text


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ("experiment", "hydra: {callbacks: {x: {_target_: os.system}}}"),
        ("experiment", "defaults:\n  - override /hydra/launcher: joblib"),
        ("experiment", "defaults:\n  - /hydra/callbacks: x"),
        ("tables", "hydra: {}"),
    ],
)
def test_a_users_file_reaches_neither_hydra_nor_any_code(tmp_path: Path, choice: str, text: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    (problem,) = problems_of("data.path=x", f"{choice}={file}")
    assert "hydra" in problem


@pytest.mark.parametrize(
    "typed", ["+hydra.callbacks.x={_target_: os.system}", "hydra.launcher._target_=os.system"]
)
def test_no_setting_names_code_to_call(typed: str) -> None:
    (problem,) = problems_of("data.path=x", typed)
    assert "of Hydra's own settings there are" in problem


def test_a_path_may_have_target_in_its_name() -> None:
    assert check_overrides(["output=the_target_run"], TrainConfig, conf_dir(), "train") == (
        ["output=the_target_run"],
        [],
    )


@pytest.mark.parametrize("path", ["a=b", "my [1]", "it's", "~x", "(1)"])
def test_a_path_that_needs_quotes_is_refused_with_the_quotes_that_work(path: str) -> None:
    (problem,) = problems_of(f"data.path={path}", "data.path=x")
    typed = shlex.split(problem.rpartition("write ")[2])
    assert compose_config("train", TrainConfig, typed).data.path == path


def test_the_home_folder_may_be_written_as_the_shell_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert compose_config("train", TrainConfig, ["data.path=~/clicks"]).data.path == "/home/ada/clicks"
    assert (
        compose_config("train", TrainConfig, ["data.path='~/my clicks'"]).data.path == "/home/ada/my clicks"
    )
    given = compose_config("preprocess", PreprocessConfig, ["input.train=[~/a,~/b]", "dataset=criteo_kaggle"])
    assert given.input.train == ["/home/ada/a", "/home/ada/b"]


def test_values_of_a_sweep_without_multirun_are_explained() -> None:
    (problem,) = problems_of("data.path=x", "trainer.seed=0,1")
    assert problem.startswith("trainer.seed=0,1 gives several values")
    assert "--multirun" in problem


def test_values_of_a_sweep_are_checked_one_by_one() -> None:
    checked, problems = check_overrides(
        ["trainer.seed=0,soon", "model=dlrm,dnc", "experiment=null,kaggle_small"],
        TrainConfig,
        conf_dir(),
        "train",
        is_sweep=True,
    )
    assert checked == ["experiment=nothing,kaggle_small"]
    assert len(problems) == 2
    assert str(problems[0]) == "trainer.seed must be a whole number, got 'soon'"
    assert str(problems[1]).startswith("model=dnc is not known")


@pytest.mark.parametrize(
    ("command", "schema", "given", "typed"),
    [
        ("train", TrainConfig, ["data.path=x"], "experiment=null"),
        ("generate", GenerateConfig, ["output=x"], "experiment=null"),
        ("generate", GenerateConfig, ["output=x"], "tables=null"),
    ],
)
def test_a_default_of_null_may_be_typed(
    command: str, schema: type[Any], given: list[str], typed: str
) -> None:
    assert compose_config(command, schema, [*given, typed]) == compose_config(command, schema, given)


def test_no_other_group_may_be_null() -> None:
    (problem,) = problems_of("data.path=x", "model=null")
    assert problem.startswith("model=null is not known: choose one of ")


def test_a_key_is_not_deleted() -> None:
    (problem,) = problems_of("data.path=x", "~trainer.max_steps")
    assert problem.startswith("~trainer.max_steps would delete a key")


def test_a_choice_is_not_put_elsewhere_nor_left_out() -> None:
    """Hydra would take model@foo=dcn for a choice of its own, and +model=dcn for a second one."""
    (problem,) = problems_of("data.path=x", "model@foo=dcn")
    assert problem == "model@foo=dcn: @foo names no place of its own: write model=dcn"
    assert compose_config("train", TrainConfig, ["data.path=x", "+model=dcn"]).model.kind == "dcn"
    (problem,) = problems_of("data.path=x", "~model")
    assert problem.endswith("choose another")


def test_a_launcher_that_is_not_there_is_no_promise() -> None:
    (problem,) = problems_of("data.path=x", "hydra/launcher=joblib")
    assert "Could not find 'hydra/launcher/joblib': pip install" in problem


def test_a_batch_that_no_memory_holds_is_refused_beforehand() -> None:
    config = compose_config("train", TrainConfig, ["data.path=x", "evaluation.batch_size=1000000000"])
    (problem,) = config.problems()
    assert str(problem) == "evaluation.batch_size must lie between 1 and 16777216, got 1000000000"


def test_a_cluster_of_a_hundred_million_nodes_is_refused() -> None:
    config = compose_config("plan", PlanConfig, ["topology=a100_80g_8", "topology.nodes=100000000"])
    assert any("at most 65,536 ranks, got 800,000,000" in str(problem) for problem in config.problems())


def test_the_home_folder_may_stand_in_a_file_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    (tmp_path / "mine.yaml").write_text("data: {path: ~/clicks}\noutput: a~/b\n")
    config = compose_config("train", TrainConfig, [f"experiment={tmp_path}/mine.yaml"])
    assert (config.data.path, config.output) == ("/home/ada/clicks", "a~/b")


@pytest.mark.parametrize("name", ["null", "1e5", "my tables (2)", "x=y", "naïve", "-"])
def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.yaml"
    path.write_text("specs:\n  - {name: t, rows: 10, features: [a]}\n")
    config = compose_config("train", TrainConfig, ["data.path=x", f'tables="{path}"'])
    assert [spec["name"] for spec in config.tables.specs] == ["t"]


def test_a_file_with_a_wrong_defaults_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("defaults: 5\nembedding_dim: 8\n")
    (problem,) = problems_of("data.path=x", f"tables={path}")
    assert "defaults must be a list" in problem


@pytest.mark.parametrize("value", ["days", "export/encoding"])
def test_a_folder_is_no_choice_of_the_group_that_a_setting_is_called_as(value: str) -> None:
    """dlrm-predict's ``encoding`` is a folder, dlrm-preprocess's a choice of conf/encoding."""
    given = ["model=m", "output=s.parquet", "input=f.tsv", f"encoding={value}"]
    assert check_overrides(given, PredictConfig, conf_dir(), "predict") == (given, [])
    assert compose_config("predict", PredictConfig, given).encoding == value
