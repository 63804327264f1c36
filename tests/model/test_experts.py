"""Experts before the top MLPs of several labels; test_labels.py compares trainings with plain torch."""

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from dlrm_app.config.train import ModelConfig
from dlrm_app.dataset.manifest import LearntLabel
from dlrm_app.model.architectures import ARCHITECTURES, ModelSpec
from dlrm_app.model.build import build_model
from dlrm_app.model.experts import Experts
from dlrm_app.model.inputs import named_axes
from dlrm_app.model.problems import model_problems, model_table_problems
from tests.model.test_parity import MODELS
from tests.plain_training import compose_train
from tests.random_batches import NUM_DENSE, TABLES

LABELS = [LearntLabel("click"), LearntLabel("order", given="click"), LearntLabel("like")]
PLE = ["model.tasks=ple", "model.experts.own=2", "model.experts.levels=2"]
KINDS = [kind for kind, each in ARCHITECTURES.items() if each.takes_experts]


def config_of(*overrides: str) -> ModelConfig:
    return compose_train(*overrides).model


def spec_of(*overrides: str, labels: Sequence[LearntLabel] = LABELS) -> ModelSpec:
    return ModelSpec(config_of(*overrides), TABLES, NUM_DENSE, labels=labels)


def rules_of(spec: ModelSpec) -> list[str]:
    return [f"{each}" for each in (*model_problems(spec.config), *model_table_problems(spec))]


@pytest.mark.parametrize("overrides", [["model.tasks=mmoe"], ["model.tasks=ple"], PLE])
def test_gradients_reach_every_expert_and_every_gate(overrides: list[str]) -> None:
    torch.manual_seed(0)
    experts = Experts(10, config_of(*overrides, "model.experts.mlp=[8,6]"), 3)
    sum(mixture.square().sum() for mixture in experts(torch.randn(64, 10))).backward()
    assert [name for name, weight in experts.named_parameters() if weight.grad is None] == []
    assert [name for name, weight in experts.named_parameters() if not weight.grad.any()] == []


def test_own_experts_teach_no_other_label() -> None:
    torch.manual_seed(0)
    experts = Experts(10, config_of("model.tasks=ple", "model.experts.own=2", "model.experts.shared=3"), 3)
    experts(torch.randn(64, 10))[1].sum().backward()
    taught = [number for number, each in enumerate(experts.levels[0].experts) if learns(each)]
    assert taught == [0, 1, 2, 5, 6]
    assert [learns(gate) for gate in experts.levels[0].gates] == [False, True, False]


def learns(module: nn.Module) -> bool:
    return any(weight.grad is not None for weight in module.parameters())


def test_a_mixture_of_equal_experts_is_that_expert() -> None:
    experts = Experts(10, config_of("model.tasks=mmoe"), 2)
    first, *others = experts.levels[0].experts
    for each in others:
        each.load_state_dict(first.state_dict())
    crossed = torch.randn(16, 10)
    for mixture in experts(crossed):
        torch.testing.assert_close(mixture, first(crossed))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("overrides", [["model.tasks=mmoe"], PLE])
def test_every_axis_has_as_many_names_as_places(kind: str, overrides: list[str]) -> None:
    bottom = ["model.bottom_mlp=[]"] if kind == "concat" else []
    model = [f"model={kind}"] if kind == "concat" else MODELS[kind]
    spec = spec_of(*model, *bottom, *overrides)
    parameters = build_model(spec, torch.device("cpu")).state_dict()
    axes = named_axes(spec, [f"i{number}" for number in range(NUM_DENSE)])
    assert kind == "projection" or any("gates" in name for name in axes)
    for name, of_each_axis in axes.items():
        shape = parameters[name].shape
        assert [len(names or range(n)) for names, n in zip(of_each_axis, shape, strict=True)] == [*shape]


def test_refuses_what_has_no_meaning() -> None:
    assert rules_of(spec_of("model.tasks=mmoe")) == []
    (one_label,) = rules_of(spec_of("model.tasks=ple", labels=[]))
    assert "model.tasks=ple needs a dataset with several labels" in one_label
    (unread,) = rules_of(spec_of("model.experts.shared=2"))
    assert "model.experts needs model.tasks=mmoe or ple" in unread
    (own,) = rules_of(spec_of("model.tasks=mmoe", "model.experts.own=1"))
    assert "model.experts.own=1 needs model.tasks=ple" in own
    (other,) = rules_of(spec_of(*MODELS["finalnet"], "model.tasks=mmoe"))
    assert "model.tasks=mmoe is not a setting of model.kind=finalnet" in other
