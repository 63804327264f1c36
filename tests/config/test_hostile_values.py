"""Values that nobody means, given to every key of every command: refused by name, never an error of Python's."""

from collections.abc import Iterator
from typing import Any

import pytest
from omegaconf import OmegaConf

from dlrm_app.config.check import CheckConfig
from dlrm_app.config.compose import compose_tree, resolved
from dlrm_app.config.datasets import PreprocessConfig
from dlrm_app.config.evaluate import EvaluateConfig
from dlrm_app.config.export import ExportConfig
from dlrm_app.config.generate import GenerateConfig
from dlrm_app.config.like_train import PlanConfig, TuneConfig
from dlrm_app.config.predict import PredictConfig
from dlrm_app.config.report import ReportConfig
from dlrm_app.config.schema import build, is_section, type_of, types_of
from dlrm_app.config.serve import ServeConfig
from dlrm_app.config.train import TrainConfig
from dlrm_app.config.values import type_problem
from dlrm_app.errors import ConfigError
from tests.composed import compose_config, overrides
from tests.refusals import refused

COMMANDS: dict[str, tuple[type[Any], list[str]]] = {
    "train": (TrainConfig, ["data.path=x"]),
    "preprocess": (PreprocessConfig, ["input.train=x", "output=y"]),
    "check": (CheckConfig, ["data.path=x"]),
    "generate": (GenerateConfig, ["output=y"]),
    "evaluate": (EvaluateConfig, ["checkpoint=x"]),
    "plan": (PlanConfig, []),
    "tune": (TuneConfig, ["data.path=x", "output=y"]),
    "export": (ExportConfig, ["checkpoint=x", "output=y"]),
    "predict": (PredictConfig, ["model=x", "output=y"]),
    "report": (ReportConfig, ["runs=[x]"]),
    "serve": (ServeConfig, ["model=x"]),
}
REFERENCE, NUMBERS, TEXT = "${nowhere}", ["nan", 2**63 - 1], ["", "x" * 300]
LIKE_TRAIN = ("plan", "tune")
"""Commands whose other keys are dlrm-train's."""


def leaves(schema: Any, prefix: str = "") -> Iterator[str]:
    for name, kind in types_of(schema).items():
        yield from leaves(kind, f"{prefix}{name}.") if is_section(kind) else [f"{prefix}{name}"]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_no_value_of_any_key_is_an_error_of_pythons(command: str) -> None:
    schema, required = COMMANDS[command]
    tree, _ = compose_tree(command, schema, overrides(command, schema, required))
    known = set(leaves(TrainConfig)) if command in LIKE_TRAIN else set()
    for key in set(leaves(schema)) - known:
        kind = type_of(key, schema)
        values = NUMBERS if type_problem(key, "", kind) else TEXT
        for value in [REFERENCE, *(value for value in values if not type_problem(key, value, kind))]:
            changed = tree.copy()
            OmegaConf.update(changed, key, value, force_add=True)
            if value == REFERENCE:
                with refused(ConfigError, key, "cannot be resolved: ..."):
                    resolved(changed)
            else:
                config = build(schema, resolved(changed), [])
                assert config is not None
                config.problems()  # whatever it says


LISTS = [f"model.bottom_mlp={value}" for value in ("[[64]]", "64", "{a:64}", "[null]")]


@pytest.mark.parametrize(
    ("typed", "rule"),
    [
        *((typed, "must be a list of whole numbers") for typed in LISTS),
        *((f"{key}=5", "must be a mapping...") for key in ("sharding.tables", "tables.data_types")),
        *(
            (typed, "must be a number of at most 63 bits...")
            for typed in (f"trainer.epochs={2**63}", f"model.top_mlp=[1,{10**30}]")
        ),
    ],
)
def test_a_value_of_another_kind_is_refused(typed: str, rule: str) -> None:
    with refused(ConfigError, typed.partition("=")[0], rule):
        compose_config("train", TrainConfig, ["data.path=x", f"trainer.seed={2**63 - 1}", typed])


def test_a_referenced_value_has_the_type_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHS", "3")
    given = ["data.path=x", "trainer.epochs=${oc.env:EPOCHS}"]
    assert compose_config("train", TrainConfig, given).trainer.epochs == 3
    monkeypatch.setenv("EPOCHS", "some")
    with refused(ConfigError, "trainer.epochs", "must be a whole number", value="some"):
        compose_config("train", TrainConfig, given)


def test_impossible_numbers_are_refused_together() -> None:
    figures = [
        "trainer.epochs=0",
        "trainer.timeout_minutes=inf",
        "trainer.threads=1000000",
        "model.bottom_mlp=[0]",
        "checkpoint.every_minutes=inf",
        "topology.memory_gib=1e300",
        "topology.host_memory_gib=inf",
        "evaluation.batch_size=1000000000",
        "optimizer.sparse.lr=1e39",
        "optimizer.dense.lr=-1",
        "optimizer.dense.weight_decay=1e39",
        "optimizer.dense.clip_norm=1e39",
        "sharding.types=[rowwise]",
    ]
    problems = compose_config("train", TrainConfig, ["data.path=x", *figures]).problems()
    assert {problem.key for problem in problems} == {figure.partition("=")[0] for figure in figures}


def test_a_plan_of_the_dataset_needs_its_path() -> None:
    config = compose_config("plan", PlanConfig, ["data.path=''"])
    assert any(str(problem).startswith("tables=dataset needs the dataset") for problem in config.problems())


def test_a_cluster_of_a_hundred_million_nodes_is_refused() -> None:
    config = compose_config("plan", PlanConfig, ["topology=a100_80g_8", "topology.nodes=100000000"])
    assert any("at most 65,536 ranks, got 800,000,000" in str(problem) for problem in config.problems())
