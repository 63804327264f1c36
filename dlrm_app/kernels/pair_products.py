"""DLRM's interaction in the operators that torch's compiler makes one loop of, for compiled exports.

Batched products of [V, D] with [D, V] run at a tenth of a core's speed, they are so small, and half of what they give is
thrown away (docs/experiments/index.md).

Shapes: B batch rows, F sparse features, V = F + 1 vectors of a row, the dense one first, D their width, P = V · F / 2
pairs of them.
"""

import torch
from torch import nn


class PairProducts(nn.Module):
    """([B, D], [B, F, D]) → [B, D + P], as DotInteraction. To be compiled: by itself it holds [B, P, D] three times."""

    first: torch.Tensor
    second: torch.Tensor

    def __init__(self, num_features: int) -> None:
        super().__init__()
        first, second = torch.triu_indices(num_features + 1, num_features + 1, 1)
        self.register_buffer("first", first.clone())
        self.register_buffer("second", second.clone())

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        vectors = torch.cat([dense.unsqueeze(1), sparse], 1)
        dots = (vectors[:, self.first] * vectors[:, self.second]).sum(2)
        return torch.cat([dense, dots], 1)
