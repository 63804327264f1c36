"""A model that has learnt nothing predicts the share of positives."""

import pytest
import torch
from torch import nn

from dlrm_app.config.train import TrainConfig
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.build import build_model
from dlrm_app.model.initial_weights import set_base_rate
from dlrm_app.tables.table import Table
from tests.composed import compose_config

TABLES = [Table("t", 10, 8, ("a",)), Table("u", 10, 8, ("b",))]


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        (["model=dlrm"], 1),
        (["model=dcn"], 1),
        (["model=concat"], 1),
        (["model.ensemble_size=2"], 2),
        (["model=gdcn_parallel"], 1),
        (["model=finalnet"], 2),
        (["model=dcnv3"], 2),
        (["model=dcnv3", "model.ensemble_size=2"], 4),
        (["model=qnn"], 1),
    ],
)
def test_with_all_else_at_zero_every_prediction_is_the_rate(overrides: list[str], count: int) -> None:
    """Of every architecture, its branches and every model of an ensemble; nothing but the last bias changes."""
    config = compose_config("train", TrainConfig, ["data.path=unused", *overrides]).model
    model = build_model(ModelSpec(config, TABLES, 3), torch.device("cpu"))
    before = {name: value.clone() for name, value in model.named_parameters() if value.device.type == "cpu"}
    set_base_rate(model, 0.03)
    changed = [name for name, value in before.items() if not torch.equal(value, model.get_parameter(name))]
    assert len(changed) == count
    for name in changed:
        last = model.get_submodule(name.rpartition(".")[0])
        assert isinstance(last, nn.Linear)
        assert last.out_features == 1
        last.weight.data.zero_()
        probability = torch.sigmoid(last(torch.randn(5, last.in_features)))
        assert torch.allclose(probability, torch.tensor(0.03))
