"""Learnt functions of dense features: periodic ones, concatenated with the values, and polylines, added to their vectors.

Gorishniy et al. 2022, "On embeddings for numerical features in tabular deep learning", arXiv:2203.05556: their PLR, and
their piecewise linear encoding with a linear layer behind it.
Shapes: B batch rows, N dense features, M of them embedded, W waves of a feature, E an embedding's width, K knots of a
polyline, D the tables' width.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from dlrm_app.errors import ConfigError, Problem
from dlrm_app.model.feature_vectors import DenseVectors

NUM_WAVES = 16
FREQUENCY_DEVIATION = 0.3
"""Deviation of the initial frequencies, in waves per deviation of the feature."""

POINTS_SCALE = 5.0
"""What a polyline's points are multiplied by: few rows teach each, so they need larger steps than Adam's usual ones."""

_SHORTEST = 1e-30
"""The length of a piece between equal knots, which makes it a step."""


class FromSample(nn.Module):
    """A layer that begins with buffers made of rows of the training split."""

    def begin_with(self, sample: torch.Tensor) -> None:
        """Sets them from ``sample`` [R, N]."""
        raise NotImplementedError


class PeriodicEmbedding(FromSample):
    """[B, N] → [B, N + M · E]: the values (standardised for ``features``), then E values relu(linear(sin, cos
    of waves)) for each.

    Each feature has its own frequencies and linear layer. ``mean`` and ``scale`` are the training split's: so the scale
    of a feature makes no difference.
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
    def begin_with(self, sample: torch.Tensor) -> None:
        """A feature with one value in all rows keeps its scale."""
        wide, chosen = sample.double(), self.features
        deviation = wide.std(0, correction=0)
        scale = torch.where(deviation > 0, 1 / deviation, 1.0)
        self.mean[chosen] = wide.mean(0).to(self.mean)[chosen]
        self.scale[chosen] = scale.to(self.scale)[chosen]


class PolylineVectors(FromSample):
    """[B, N] → [B, N · D]: as ``vectors``, and to those of ``features`` is added the place on a polyline in D dimensions.

    Its K points are learnt, and begin at 0. Their knots are quantiles of the feature, beyond which the line is level. A
    value that fills several quantiles has a point of its own: the line is broken behind it.
    """

    knots: torch.Tensor
    features: torch.Tensor

    def __init__(self, vectors: DenseVectors, features: Sequence[int], num_knots: int) -> None:
        super().__init__()
        self.weight = vectors.weight
        shape = len(features), num_knots
        self.register_buffer("knots", torch.linspace(0, 1, num_knots).expand(shape).clone())
        self.register_buffer("features", torch.tensor(features), persistent=False)
        self.points = nn.Parameter(torch.zeros(*shape, self.weight.shape[1]))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        begins = self.knots[:, :-1]
        lengths = (self.knots[:, 1:] - begins).clamp(min=_SHORTEST)
        chosen = values.index_select(1, self.features).unsqueeze(2)
        passed = ((chosen - begins) / lengths).clamp(0, 1)  # [B, M, K - 1]: the share of each piece
        pieces = self.points[:, 1:] - self.points[:, :-1]
        bent = self.points[:, 0] + torch.einsum("bmk,mkd->bmd", passed, pieces)
        straight = values.unsqueeze(2) * self.weight
        return straight.index_add(1, self.features, (POINTS_SCALE * bent).to(straight.dtype)).flatten(1)

    @torch.no_grad()
    def begin_with(self, sample: torch.Tensor) -> None:
        places = np.linspace(0, len(sample) - 1, self.knots.shape[1]).round().astype(np.int64)
        for knots, number in zip(self.knots, self.features.tolist(), strict=True):
            values = sample[:, number].float().numpy()
            knots.copy_(torch.from_numpy(np.partition(values, np.unique(places))[places]))


def with_polylines(part: nn.Module, features: Sequence[int], num_knots: int) -> PolylineVectors:
    """``part``, a model's dense_arch, with them. Raises ConfigError where it makes no vectors of dense features."""
    if not isinstance(part, DenseVectors):
        rule = "needs a model whose dense_arch is DenseVectors of dlrm_app.model.feature_vectors"
        raise ConfigError(Problem("model.dense_knots", rule, "leave it out", num_knots))
    return PolylineVectors(part, features, num_knots)


def begin_with_sample(model: nn.Module, sample: torch.Tensor) -> None:
    """Begins every such layer in ``model`` with ``sample`` [R, N], rows of the training split."""
    for module in model.modules():
        if isinstance(module, FromSample):
            module.begin_with(sample)
