"""Values that nobody means, given to every key of every command: refused by name, never an error of Python's."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from omegaconf import OmegaConf

from dlrm_app.config.compose import compose_config, compose_tree, resolved
from dlrm_app.config.datasets import CheckConfig, GenerateConfig, PreprocessConfig
from dlrm_app.config.like_train import BenchConfig, PlanConfig, TuneConfig
from dlrm_app.config.schema import build, is_section, type_of, type_problem, types_of
from dlrm_app.config.scoring import EvaluateConfig, ExportConfig, PredictConfig, ReportConfig, ServeConfig
from dlrm_app.config.train import TrainConfig
from dlrm_app.errors import ConfigError

COMMANDS: dict[str, tuple[type[Any], list[str]]] = {
    "train": (TrainConfig, ["data.path=x"]),
    "preprocess": (PreprocessConfig, ["input.train=x", "output=y"]),
    "check": (CheckConfig, ["data.path=x"]),
    "generate": (GenerateConfig, ["output=y"]),
    "evaluate": (EvaluateConfig, ["checkpoint=x"]),
    "plan": (PlanConfig, []),
    "bench": (BenchConfig, []),
    "tune": (TuneConfig, ["data.path=x", "output=y"]),
    "export": (ExportConfig, ["checkpoint=x", "output=y"]),
    "predict": (PredictConfig, ["model=x", "output=y"]),
    "report": (ReportConfig, ["runs=[x]"]),
    "serve": (ServeConfig, ["model=x"]),
}
REFERENCE, NUMBERS, TEXT = "${nowhere}", ["nan", 2**63 - 1], ["", "x" * 300]
LIKE_TRAIN = ("plan", "bench", "tune")
"""Commands whose other keys are dlrm-train's."""


def leaves(schema: Any, prefix: str = "") -> Iterator[str]:
    for name, kind in types_of(schema).items():
        yield from leaves(kind, f"{prefix}{name}.") if is_section(kind) else [f"{prefix}{name}"]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_value_of_any_key_is_an_error_of_pythons(command: str) -> None:
    schema, required = COMMANDS[command]
    tree, _ = compose_tree(command, schema, required)
    known = set(leaves(TrainConfig)) if command in LIKE_TRAIN else set()
    for key in set(leaves(schema)) - known:
        kind = type_of(key, schema)
        values = NUMBERS if type_problem(key, "", kind) else TEXT
        for value in [REFERENCE, *(value for value in values if not type_problem(key, value, kind))]:
            changed = tree.copy()
            OmegaConf.update(changed, key, value, force_add=True)
            if value == REFERENCE:
                with pytest.raises(ConfigError, match=re.escape(key)):
                    resolved(changed)
            else:
                config = build(schema, resolved(changed), [])
                assert config is not None
                config.problems()  # whatever it says


@pytest.mark.parametrize("value", ["[[64]]", "64", "{a:64}", "[null]"])
def test_what_is_no_list_of_numbers_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.bottom_mlp must be a list of whole numbers"):
        compose_config("train", TrainConfig, ["data.path=x", f"model.bottom_mlp={value}"])


@pytest.mark.parametrize("key", ["sharding.tables", "tables.data_types"])
def test_what_is_no_mapping_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key} must be a mapping"):
        compose_config("train", TrainConfig, ["data.path=x", f"{key}=5"])


@pytest.mark.parametrize("typed", [f"trainer.epochs={2**63}", f"model.top_mlp=[1,{10**30}]"])
def test_numbers_beyond_64_bits_are_refused_wherever_they_stand(typed: str) -> None:
    with pytest.raises(ConfigError, match="at most 63 bits"):
        compose_config("train", TrainConfig, ["data.path=x", f"trainer.seed={2**63 - 1}", typed])


def test_a_value_that_a_reference_leads_to_has_the_type_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHS", "3")
    given = ["data.path=x", "trainer.epochs=${oc.env:EPOCHS}"]
    assert compose_config("train", TrainConfig, given).trainer.epochs == 3
    monkeypatch.setenv("EPOCHS", "some")
    with pytest.raises(ConfigError, match=r"trainer\.epochs must be a whole number, got 'some'"):
        compose_config("train", TrainConfig, given)


@pytest.mark.parametrize(
    "override",
    [
        "trainer.timeout_minutes=inf",
        "checkpoint.every_minutes=inf",
        "topology.memory_gib=1e300",
        "topology.host_memory_gib=inf",
        "trainer.threads=1000000",
        "evaluation.batch_size=1000000000",
        "optimizer.sparse.lr=1e39",
        "optimizer.dense.weight_decay=1e39",
        "optimizer.dense.clip_norm=1e39",
    ],
)
def test_figures_that_nothing_has_are_refused(override: str) -> None:
    (problem,) = compose_config("train", TrainConfig, ["data.path=x", override]).problems()
    assert problem.key == override.partition("=")[0]


def test_a_plan_of_the_dataset_needs_its_path() -> None:
    config = compose_config("plan", PlanConfig, ["data.path=''"])
    assert any(str(problem).startswith("tables=dataset needs the dataset") for problem in config.problems())


def test_a_cluster_of_a_hundred_million_nodes_is_refused() -> None:
    config = compose_config("plan", PlanConfig, ["topology=a100_80g_8", "topology.nodes=100000000"])
    assert any("at most 65,536 ranks, got 800,000,000" in str(problem) for problem in config.problems())
