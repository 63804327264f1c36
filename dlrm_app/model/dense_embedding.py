"""Periodic embeddings of dense features: learnt smooth functions of each value, concatenated with the value itself.

Gorishniy et al. 2022, "On embeddings for numerical features in tabular deep learning", arXiv:2203.05556, their PLR.
Shapes: B batch rows, N dense features, M of them embedded, W waves of a feature, E an embedding's width.
"""

import math
from collections.abc import Sequence

import torch
from torch import nn

NUM_WAVES = 16
FREQUENCY_DEVIATION = 0.3
"""Deviation of the initial frequencies, in waves per deviation of the feature."""


class PeriodicEmbedding(nn.Module):
    """[B, N] → [B, N + M · E]: the values (standardised for ``features``), then E values relu(linear(sin, cos
    of waves)) for each.

    Each feature has its own frequencies and linear layer. ``mean`` and ``scale`` are the training split's
    (``set_moments``): so the scale of a feature makes no difference.
    """

    mean: torch.Tensor
    scale: torch.Tensor
    features: torch.Tensor

    def __init__(self, num_dense: int, features: Sequence[int], dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(num_dense))
        self.register_buffer("scale", torch.ones(num_dense))
        self.register_buffer("features", torch.tensor(features), persistent=False)
        count = len(features)
        self.frequencies = nn.Parameter(torch.empty(count, NUM_WAVES).normal_(0, FREQUENCY_DEVIATION))
        bound = (2 * NUM_WAVES) ** -0.5  # as in nn.Linear
        self.weight = nn.Parameter(torch.empty(count, dim, 2 * NUM_WAVES).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(count, dim).uniform_(-bound, bound))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = (values - self.mean) * self.scale
        # [B, M, W]
        angles = 2 * math.pi * values.index_select(1, self.features).unsqueeze(2) * self.frequencies
        waves = torch.cat([angles.sin(), angles.cos()], dim=2)
        functions = torch.relu(torch.einsum("bmw,mew->bme", waves, self.weight) + self.bias)
        return torch.cat([values, functions.flatten(1)], dim=1)


@torch.no_grad()
def set_moments(model: nn.Module, sample: torch.Tensor) -> None:
    """Sets the moments of every PeriodicEmbedding in ``model`` to those of ``sample`` [R, N], rows of the
    training split.

    A feature with one value in all rows keeps its scale.
    """
    wide = sample.double()
    mean, deviation = wide.mean(0), wide.std(0, correction=0)
    scale = torch.where(deviation > 0, 1 / deviation, 1.0)
    for module in model.modules():
        if isinstance(module, PeriodicEmbedding):
            chosen = module.features
            module.mean[chosen] = mean.to(module.mean)[chosen]
            module.scale[chosen] = scale.to(module.scale)[chosen]
