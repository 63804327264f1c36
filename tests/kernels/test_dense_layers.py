"""Linear layers with ReLU and low-rank cross layers, beside torchrec's own and beside exact ones."""

import copy

import pytest
import torch
from torch import fx, nn
from torchrec.modules.crossnet import LowRankCrossNet
from torchrec.modules.mlp import MLP

from dlrm_app.kernels.install import replace_layers

WIDTH = 24
Pair = tuple[nn.Module, nn.Module]


@pytest.fixture(name="nets", params=["mlp", "cross"])
def fixture_nets(request: pytest.FixtureRequest) -> Pair:
    """torchrec's, and ours with the same weights."""
    torch.manual_seed(0)
    net = MLP(WIDTH, [64, 32, 8]) if request.param == "mlp" else LowRankCrossNet(WIDTH, 3, 5)
    for name, weight in net.named_parameters():
        if "bias" in name:
            weight.data.normal_()
    plain = nn.Sequential(net)
    return plain, replace_layers(copy.deepcopy(plain))


def inputs_of(rows: int) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(rows))


def gradients(net: nn.Module, inputs: torch.Tensor) -> dict[str, torch.Tensor | None]:
    given = inputs.clone().requires_grad_()
    net(given).float().square().sum().backward()
    return {"inputs": given.grad} | {name: weight.grad for name, weight in net.named_parameters()}


def test_layers_are_replaced_and_weights_keep_their_names(nets: Pair) -> None:
    plain, fast = nets
    assert {type(module).__name__ for module in fast.modules()} & {"LinearRelu", "LowRankCross"}
    assert list(fast.state_dict()) == list(plain.state_dict())


@pytest.mark.parametrize("rows", [0, 1, 100])
def test_outputs_and_gradients_equal_torchrecs(nets: Pair, rows: int) -> None:
    plain, fast = nets
    torch.testing.assert_close(fast(inputs_of(rows)), plain(inputs_of(rows)))
    torch.testing.assert_close(
        gradients(fast, inputs_of(rows)), gradients(plain, inputs_of(rows)), rtol=1e-5, atol=1e-3
    )


def test_no_further_from_the_exact_gradients_than_torchrecs(nets: Pair) -> None:
    plain, fast = nets
    exact = gradients(copy.deepcopy(plain).double(), inputs_of(512).double())
    found, theirs = gradients(fast, inputs_of(512)), gradients(plain, inputs_of(512))
    for name, value in exact.items():
        assert value is not None
        error, of_theirs = ((each[name] - value).norm() / value.norm() for each in (found, theirs))
        assert error < max(2 * of_theirs, 1e-6), name


def test_a_bf16_step_is_torchs(nets: Pair) -> None:
    """Products in bfloat16; the gradients of the weights in float32."""
    plain, fast = nets
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = plain(inputs_of(64)), fast(inputs_of(64))
        of_plain, of_fast = gradients(plain, inputs_of(64)), gradients(fast, inputs_of(64))
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-1)
    for name, gradient in of_fast.items():
        of_plain_too = of_plain[name]
        assert gradient is not None
        assert of_plain_too is not None
        assert gradient.dtype == torch.float32
        assert (gradient - of_plain_too).norm() < 2e-2 * of_plain_too.norm(), name


def test_inputs_and_gradients_are_not_changed_in_place(nets: Pair) -> None:
    """Sums in place are of its own memory: neither the inputs nor the gradient that comes in changes."""
    inputs = inputs_of(10).requires_grad_()
    outputs = nets[1](inputs)
    gradient = torch.ones_like(outputs)
    outputs.backward(gradient)
    assert torch.equal(inputs, inputs_of(10))
    assert torch.equal(gradient, torch.ones_like(outputs))


def test_nan_is_not_made_zero(nets: Pair) -> None:
    assert nets[1](torch.full((4, WIDTH), torch.nan)).isnan().all()


def test_readers_of_the_model_see_plain_operators(nets: Pair) -> None:
    plain, fast = nets
    expected = plain(inputs_of(5))
    assert torch.equal(fx.symbolic_trace(fast)(inputs_of(5)), expected)
    assert torch.equal(torch.export.export(fast, (inputs_of(5),)).module()(inputs_of(5)), expected)


def test_other_activations_are_left_alone() -> None:
    other = MLP(4, [3], activation=torch.sigmoid)
    assert [*map(type, replace_layers(other).modules())] == [*map(type, other.modules())]
