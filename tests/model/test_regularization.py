"""Batch norm over the rows of all ranks, and dropout, beside torch's own on all rows at once."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torchrec.modules.mlp import MLP

from dlrm_app.config.train import ModelConfig
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.model.regularization import RegularizedPerceptron, SyncedBatchNorm, regularize
from tests.ranks import on_ranks

ROWS, WIDTH, STEPS = 24, 5, 3


def inputs_of(step: int) -> torch.Tensor:
    """[ROWS, WIDTH], away from 0, where squares less squares cancel."""
    return 10 + torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(step))


def train_norm(norm: nn.Module, rank: int = 0, world_size: int = 1) -> dict[str, Any]:
    """Outputs and gradients of this rank's rows in three steps, then what is learnt, kept and predicted."""
    seen: dict[str, Any] = {"outputs": [], "gradients": []}
    for step in range(STEPS):
        inputs = inputs_of(step).chunk(world_size)[rank].clone().requires_grad_()
        outputs = norm(inputs)
        weights = (inputs_of(step + 100) - 10).chunk(world_size)[rank]  # another for each output
        (weights * outputs).sum().backward()
        seen["outputs"].append(outputs.detach())
        seen["gradients"].append(inputs.grad)
    seen["state"] = {name: value.clone() for name, value in norm.state_dict().items()}
    seen["of_weight"], seen["of_bias"] = norm.weight.grad, norm.bias.grad
    seen["predicted"] = norm.eval()(inputs_of(9)).detach()
    return seen


def on_rank(runtime: Runtime) -> dict[str, Any]:
    return train_norm(SyncedBatchNorm(WIDTH), runtime.rank, runtime.world_size)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_batch_norm_over_ranks_equals_torchs_over_all_rows(num_ranks: int) -> None:
    expected = train_norm(nn.BatchNorm1d(WIDTH))
    ranks = on_ranks(on_rank, num_ranks) if num_ranks > 1 else [train_norm(SyncedBatchNorm(WIDTH))]
    close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
    for step in range(STEPS):
        for key in ("outputs", "gradients"):
            close(torch.cat([rank[key][step] for rank in ranks]), expected[key][step])
    for key in ("of_weight", "of_bias"):  # each rank's own rows: DistributedDataParallel adds them up
        close(sum(rank[key] for rank in ranks), expected[key], rtol=1e-4, atol=1e-4)
    for rank in ranks:
        assert set(rank["state"]) == {"weight", "bias", "running_mean", "running_var"}
        for name, value in rank["state"].items():
            close(value, expected["state"][name])
            assert torch.equal(value, ranks[0]["state"][name])
        close(rank["predicted"], expected["predicted"])


def config_of(**settings: Any) -> ModelConfig:
    return ModelConfig(kind="dlrm", bottom_mlp=[4], top_mlp=[4, 1], **settings)


def test_layers_keep_their_weights_and_names() -> None:
    torch.manual_seed(0)
    plain = MLP(3, [4, 2])
    names = set(plain.state_dict())
    assert regularize(plain, config_of()) is plain
    assert set(plain.state_dict()) == names
    regularized = regularize(plain, config_of(batch_norm=True, dropout=0.1))
    assert sum(isinstance(layer, RegularizedPerceptron) for layer in regularized.modules()) == 2
    assert names < set(regularized.state_dict())


def test_dropout_leaves_out_its_share_in_training_alone() -> None:
    torch.manual_seed(0)
    layer = regularize(MLP(3, [4000]), config_of(dropout=0.25))
    with torch.no_grad():
        for linear in (module for module in layer.modules() if isinstance(module, nn.Linear)):
            linear.weight.zero_()
            linear.bias.fill_(3.0)
        trained = layer(torch.ones(2, 3))
        assert set(trained.unique().tolist()) == {0.0, 4.0}
        assert (trained == 0).float().mean().item() == pytest.approx(0.25, abs=0.03)
        assert not torch.equal(trained[0], trained[1])
        assert torch.equal(layer.eval()(torch.ones(2, 3)), torch.full((2, 4000), 3.0))
