"""Linear layers with ReLU, beside torchrec's own."""

import copy

import pytest
import torch
from torch import fx, nn
from torchrec.modules.mlp import MLP

from dlrm_app.kernels.faster_layers import speed_up


@pytest.fixture(name="mlps")
def fixture_mlps() -> tuple[nn.Module, nn.Module]:
    """torchrec's, and the same sped up."""
    torch.manual_seed(0)
    plain = MLP(13, [64, 32, 8])
    return plain, speed_up(copy.deepcopy(plain))


@pytest.mark.parametrize("rows", [0, 1, 100])
def test_outputs_and_gradients_equal_torchrecs(mlps: tuple[nn.Module, nn.Module], rows: int) -> None:
    inputs = torch.randn(rows, 13, generator=torch.Generator().manual_seed(rows))
    gradients = []
    for mlp in mlps:
        given = inputs.clone().requires_grad_()
        mlp(given).square().sum().backward()
        gradients.append([given.grad, *(weight.grad for weight in mlp.parameters())])
    torch.testing.assert_close(gradients[1], gradients[0])


def test_a_bf16_step_is_torchs(mlps: tuple[nn.Module, nn.Module]) -> None:
    """Products in bfloat16, gradients of the weights in float32."""
    inputs = torch.randn(64, 13, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        plain, fast = (mlp(inputs) for mlp in mlps)
    assert fast.dtype == torch.bfloat16
    torch.testing.assert_close(fast, plain)
    for outputs, mlp in zip((plain, fast), mlps, strict=True):
        outputs.float().sum().backward()
        assert {weight.grad.dtype for weight in mlp.parameters() if weight.grad is not None} == {
            torch.float32
        }
    for found, expected in zip(mlps[1].parameters(), mlps[0].parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=2e-2, atol=2e-1)


def test_nan_is_not_made_zero(mlps: tuple[nn.Module, nn.Module]) -> None:
    assert mlps[1](torch.full((4, 13), torch.nan)).isnan().all()


def test_readers_of_the_model_see_plain_operators(mlps: tuple[nn.Module, nn.Module]) -> None:
    inputs = torch.randn(5, 13, generator=torch.Generator().manual_seed(0))
    plain, fast = mlps
    assert torch.equal(fx.symbolic_trace(fast)(inputs), plain(inputs))
    assert torch.equal(torch.export.export(fast, (inputs,)).module()(inputs), plain(inputs))
