"""Low-rank cross layers, beside torchrec's own."""

import copy

import pytest
import torch
from torch import fx, nn
from torchrec.modules.crossnet import LowRankCrossNet

from dlrm_app.model.layers.low_rank_cross import LowRankCross
from dlrm_app.model.layers.speed_up import speed_up


@pytest.fixture(name="nets")
def fixture_nets() -> tuple[nn.Module, nn.Module]:
    """torchrec's, with biases that are not zero, and the same sped up."""
    torch.manual_seed(0)
    plain = nn.Sequential(LowRankCrossNet(in_features=24, num_layers=3, low_rank=7))
    for bias in plain[0].bias:
        nn.init.normal_(bias)
    fast = speed_up(copy.deepcopy(plain))
    assert isinstance(fast[0], LowRankCross)  # type: ignore[index]
    return plain, fast


def random_rows(rows: int) -> torch.Tensor:
    return torch.randn(rows, 24, generator=torch.Generator().manual_seed(rows))


def test_its_parameters_keep_their_names_and_order(nets: tuple[nn.Module, nn.Module]) -> None:
    plain, fast = nets
    assert list(fast.state_dict()) == list(plain.state_dict())


@pytest.mark.parametrize("rows", [0, 1, 100])
def test_outputs_and_gradients_equal_torchrecs(nets: tuple[nn.Module, nn.Module], rows: int) -> None:
    found, expected = ([], [])
    for net, results in zip(nets, (expected, found), strict=True):
        given = random_rows(rows).requires_grad_()
        outputs = net(given)
        outputs.square().sum().backward()
        results += [outputs, given.grad, *(weight.grad for weight in net.parameters())]
    for ours, theirs in zip(found, expected, strict=True):
        largest = float(theirs.abs().max()) if theirs.numel() else 0.0
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6 * largest)  # sums of terms that large


def test_bf16_products_leave_the_sum_in_float32(nets: tuple[nn.Module, nn.Module]) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        plain, fast = (net(random_rows(64)) for net in nets)
    assert fast.dtype == plain.dtype == torch.float32
    assert torch.equal(fast, plain)
    fast.sum().backward()
    assert {weight.grad.dtype for weight in nets[1].parameters() if weight.grad is not None} == {
        torch.float32
    }


def test_readers_of_the_model_see_plain_operators(nets: tuple[nn.Module, nn.Module]) -> None:
    inputs, (plain, fast) = random_rows(5), nets
    torch.testing.assert_close(fx.symbolic_trace(fast)(inputs), plain(inputs))
    torch.testing.assert_close(torch.export.export(fast, (inputs,)).module()(inputs), plain(inputs))
