"""The average of the dense weights is torch's, leaves the model as it was, and knows no tables."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dlrm_app.errors import ConfigError
from dlrm_app.model.regularization import SyncedBatchNorm
from dlrm_app.training.optimization.ema import DenseEma
from tests.plain_training import compose_train


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding_bags = nn.ModuleDict({"t": nn.EmbeddingBag(3, 2)})
        self.over_arch = nn.Sequential(nn.Linear(2, 4), SyncedBatchNorm(4), nn.Linear(4, 1))


def values(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in tensors.items()}


def test_it_is_torchs_average_with_the_running_moments_of_now() -> None:
    torch.manual_seed(0)
    model = Model()
    ours = DenseEma(model, 0.9)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 6):
        optimizer.zero_grad()
        model.over_arch(torch.randn(8, 2)).square().mean().backward()
        optimizer.step()
        ours.update(step)
        theirs.update_parameters(model)
    averages = {name.removeprefix("ema/"): value for name, value in ours.tensors().items()}
    expected = {name: value for name, value in theirs.module.state_dict().items() if "bags" not in name}
    assert averages.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(averages[name], value), name


def test_the_model_has_its_own_weights_again() -> None:
    model = Model()
    ema = DenseEma(model, 0.5)
    ema.update(1)
    for parameter in model.parameters():
        nn.init.constant_(parameter, 2.0)
    ema.update(2)
    before, average = values(model.state_dict()), values(ema.tensors())
    with ema.in_place():
        for name, value in average.items():
            assert torch.equal(model.state_dict()[name.removeprefix("ema/")], value)
        assert not torch.equal(model.over_arch[0].weight, before["over_arch.0.weight"])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(value, average[name]) for name, value in ema.tensors().items())


@pytest.mark.parametrize("decay", [0, 1, 1.5, -0.1, "nan"])
def test_a_decay_that_is_none_is_refused(decay: object) -> None:
    with pytest.raises(ConfigError, match=r"optimizer\.dense\.ema_decay must lie between 0 and 1"):
        compose_train(f"optimizer.dense.ema_decay={decay}")
