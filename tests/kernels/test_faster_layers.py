"""Which layers are replaced by faster ones."""

import copy

import pytest
import torch
from torch import nn
from torchrec.modules.crossnet import LowRankCrossNet
from torchrec.modules.mlp import MLP

from dlrm_app.kernels.faster_layers import speed_up
from dlrm_app.kernels.low_rank_cross import LowRankCross
from dlrm_app.kernels.perceptrons import LinearRelu


@pytest.mark.parametrize(
    ("model", "kind", "count"),
    [
        (lambda: MLP(13, [64, 32, 8]), LinearRelu, 3),
        (lambda: nn.Sequential(LowRankCrossNet(8, 2, 3), MLP(8, [4])), LowRankCross, 1),
    ],
)
def test_every_such_layer_is_replaced_and_keeps_its_names(model, kind: type[nn.Module], count: int) -> None:  # type: ignore[no-untyped-def]
    plain = nn.Sequential(model())
    fast = speed_up(copy.deepcopy(plain))
    assert sum(type(module) is kind for module in fast.modules()) == count
    assert list(fast.state_dict()) == list(plain.state_dict())


def test_other_activations_are_left_alone() -> None:
    other = speed_up(MLP(4, [3], activation=torch.sigmoid))
    assert not any(isinstance(module, LinearRelu) for module in other.modules())
