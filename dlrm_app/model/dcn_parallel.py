"""DCNv2 in parallel: full-rank cross layers beside an MLP over the same input (Wang et al. 2021,
arXiv:2008.13535, figure 1b).

As in BARS' DCNv2, every dense feature has a vector too: its value times learnt weights.
Shapes: B batch rows, F sparse features, N dense features, D the tables' width, W = (N + F) · D.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.mlp import MLP
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from dlrm_app.config.train import ModelConfig
from dlrm_app.model.dlrm import OrderedSparseArch


class DenseVectors(nn.Module):
    """[B, N] → [B, N · D]: each value times its feature's own vector."""

    def __init__(self, num_dense: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_dense, dim).normal_(0.0, (2 / (1 + dim)) ** 0.5))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return (values.unsqueeze(2) * self.weight).flatten(1)


class CrossLayers(nn.Module):
    """[B, W] → [B, W]: x ← x₀ · (W x + b) + x, layer by layer."""

    def __init__(self, width: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(num_layers))

    def forward(self, first: torch.Tensor) -> torch.Tensor:
        crossed = first
        for layer in self.layers:
            crossed = first * layer(crossed) + crossed
        return crossed


class ParallelHead(nn.Module):
    """([B, W], the cross layers' output [B, W]) → logits [B, 1]."""

    def __init__(self, width: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.mlp = MLP(width, list(widths))
        self.last = nn.Linear(width + widths[-1], 1)

    def forward(self, first: torch.Tensor, crossed: torch.Tensor) -> torch.Tensor:
        return self.last(torch.cat([crossed, self.mlp(first)], dim=1))


class ParallelDcn(nn.Module):
    """The model; its parts have the names that they have in torchrec's models."""

    def __init__(
        self, bags: EmbeddingBagCollection, num_dense: int, num_layers: int, widths: Sequence[int]
    ) -> None:
        super().__init__()
        self.sparse_arch = OrderedSparseArch(bags)
        dim = self.sparse_arch.D
        width = (num_dense + self.sparse_arch.F) * dim
        self.dense_arch = DenseVectors(num_dense, dim)
        self.inter_arch = CrossLayers(width, num_layers)
        self.over_arch = ParallelHead(width, widths)

    def forward(self, dense_features: torch.Tensor, sparse_features: KeyedJaggedTensor) -> torch.Tensor:
        """Logits [B, 1]."""
        embedded = self.sparse_arch(sparse_features)  # [B, F, D]
        first = torch.cat([self.dense_arch(dense_features), torch.flatten(embedded, 1)], dim=1)
        return self.over_arch(first, self.inter_arch(first))


def build(
    config: ModelConfig, bags: EmbeddingBagCollection, num_dense: int, bottom: list[int], top: list[int]
) -> nn.Module:
    assert config.dcn_num_layers is not None
    return ParallelDcn(bags, num_dense, config.dcn_num_layers, top[:-1])
