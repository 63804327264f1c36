"""What quadratic layers do in their own way: ReLUs, dropout and sums in one, and a first layer that passes share."""

from typing import Any

import pytest
import torch

from dlrm_app.config.train import ModelConfig
from dlrm_app.model.qnn import QuadraticLayers, sum_relus

ROWS, HEADS, SUMMED, WIDTH = 200, 2, 3, 50


def draw_hidden(seed: int = 0) -> torch.Tensor:
    return torch.randn(ROWS, HEADS, SUMMED, WIDTH, generator=torch.Generator().manual_seed(seed))


def config_of(**settings: Any) -> ModelConfig:
    sizes = {"dcn_num_layers": 2, "qnn_num_rows": SUMMED, "num_heads": HEADS}
    return ModelConfig(kind="qnn", bottom_mlp=[], top_mlp=[], **sizes, **settings)


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
def test_a_sum_of_relus_is_what_its_gradient_says(dropout: float) -> None:
    """The sum is linear where it is not bent: the gradient, times the values, is the sum again."""
    torch.manual_seed(0)
    hidden = draw_hidden().requires_grad_()
    summed = sum_relus(hidden, dropout)
    (kept,) = torch.autograd.grad(summed.sum(), hidden)
    torch.testing.assert_close((hidden * kept).sum(2), summed)
    assert (kept[hidden < 0] == 0).all()
    positive = kept[hidden > 0]
    assert positive.unique().tolist() == pytest.approx([0.0, 1 / (1 - dropout)])
    spread = (dropout * (1 - dropout) / len(positive)) ** 0.5
    assert (positive == 0).float().mean().item() == pytest.approx(dropout, abs=4 * spread)


def test_what_is_left_out_is_drawn_for_each_value_by_itself() -> None:
    """Neighbours, heads, rows and calls do not go together, and a seed repeats all."""
    ones = torch.ones(1000, 2, 2, 80)

    def draw() -> torch.Tensor:
        values = ones.clone().requires_grad_()
        (kept,) = torch.autograd.grad(sum_relus(values, 0.5).sum(), values)
        return kept - 1  # -1 or 1

    torch.manual_seed(1)
    first, second = draw(), draw()
    pairs = {
        **{f"{step} on": (first.flatten()[:-step], first.flatten()[step:]) for step in (1, 2, 3, 4, 8, 80)},
        "heads": (first[:, 0], first[:, 1]),
        "rows": (first[:-1], first[1:]),
        "calls": (first, second),
    }
    for name, (one, other) in pairs.items():
        assert abs((one * other).mean().item()) < 5 / one.numel() ** 0.5, name
    torch.manual_seed(1)
    assert torch.equal(draw(), first)


def test_without_dropout_it_is_the_sum_of_relus() -> None:
    hidden = draw_hidden()
    assert torch.equal(sum_relus(hidden, 0.0), torch.relu(hidden).sum(2))


@pytest.mark.parametrize("batch_norm", [False, True])
def test_passes_with_a_shared_first_product_are_passes_by_themselves(batch_norm: bool) -> None:
    """Where dropout leaves nothing out, both passes are the layers one after another, and so are batch norms' moments."""
    torch.manual_seed(0)
    layers = QuadraticLayers(5, 4, config_of(dropout=1e-9, batch_norm=batch_norm))
    plain = QuadraticLayers(5, 4, config_of(dropout=0.0, batch_norm=batch_norm))
    plain.load_state_dict(layers.state_dict())
    vectors = torch.randn(64, 20, requires_grad=True)
    passes = layers.train()(vectors)
    expected = torch.stack([plain.train().layers(vectors) for _ in range(2)], dim=1)
    assert passes.shape == (64, 2, 20)
    torch.testing.assert_close(passes, expected)
    gradients = [torch.autograd.grad(each.square().sum(), vectors)[0] for each in (passes, expected)]
    torch.testing.assert_close(*gradients)
    for name, moment in plain.state_dict().items():
        torch.testing.assert_close(layers.state_dict()[name], moment)
