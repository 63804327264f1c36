"""Linear layers of fewer bits, compared with torch's."""

import torch
from torch import nn

from dlrm_app.inference.scoring_model import Int8Linear


def test_int8_products_are_those_of_rounded_factors() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(40, 24)
    rows = torch.randn(7, 40)
    weight_scale = linear.weight.abs().amax(1, keepdim=True) / 127
    row_scale = rows.abs().amax(1, keepdim=True) / 127
    rounded = (rows / row_scale).round() * row_scale
    weight = (linear.weight / weight_scale).round() * weight_scale
    expected = nn.functional.linear(rounded.double(), weight.double(), linear.bias.double())
    torch.testing.assert_close(Int8Linear(linear)(rows).double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(Int8Linear(linear)(rows), linear(rows), rtol=0, atol=0.03)


def test_a_row_of_int8_products_does_not_depend_on_those_beside_it() -> None:
    torch.manual_seed(1)
    linear = Int8Linear(nn.Linear(16, 8))
    rows = torch.randn(5, 16) * torch.tensor([[1.0], [100.0], [0.0], [1e-3], [7.0]])
    together = linear(rows)
    for number in range(5):
        assert torch.equal(linear(rows[number : number + 1])[0], together[number])
