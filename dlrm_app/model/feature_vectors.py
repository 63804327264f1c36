"""Models whose interaction reads a vector of every feature, the dense ones too: what they have in common.

Shapes: B batch rows, F sparse features, N dense features, D the tables' width, W = (N + F) · D.
"""

from collections.abc import Hashable, Mapping

import torch
from torch import nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from dlrm_app.model.axes import Axes, Names, places
from dlrm_app.model.dlrm import OrderedSparseArch

SMALL = 0.01
"""The deviation for models whose layers multiply everything with everything: dense values may be large, and without a
small beginning the first steps diverge. The published runs of such models have no dense values.
"""


class DenseVectors(nn.Module):
    """[B, N] → [B, N · D]: each value times its feature's own vector, which is drawn with ``deviation``."""

    def __init__(self, num_dense: int, dim: int, deviation: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_dense, dim).normal_(0.0, deviation))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return (values.unsqueeze(2) * self.weight).flatten(1)


class FeatureVectors(nn.Module):
    """The part below the interaction: a vector of every feature. ``bags`` may be the model's only input.

    ``deviation``: of the dense features' initial vectors; None: FuxiCTR's, that of a linear layer with one input.
    """

    def __init__(self, bags: EmbeddingBagCollection, num_dense: int, deviation: float | None = None) -> None:
        super().__init__()
        self.sparse_arch = OrderedSparseArch(bags)
        self.dim: int = self.sparse_arch.D
        self.num_vectors: int = num_dense + self.sparse_arch.F
        self.width = self.num_vectors * self.dim
        # a parameter without values would be one that optimizers and checkpoints have to know
        deviation = deviation or (2 / (1 + self.dim)) ** 0.5
        self.dense_arch = DenseVectors(num_dense, self.dim, deviation) if num_dense else nn.Identity()

    def vectors(self, dense_features: torch.Tensor, sparse_features: KeyedJaggedTensor) -> torch.Tensor:
        """[B, W]: the dense features' vectors, then the sparse ones'."""
        embedded = self.sparse_arch(sparse_features)  # [B, F, D]
        return torch.cat([self.dense_arch(dense_features), torch.flatten(embedded, 1)], dim=1)


class VectorModel(FeatureVectors):
    """A model that is an interaction of all vectors and what makes logits of its result."""

    inter_arch: nn.Module
    over_arch: nn.Module

    def forward(self, dense_features: torch.Tensor, sparse_features: KeyedJaggedTensor) -> torch.Tensor:
        """Logits [B, 1]; in training those of branches behind them (``dlrm_app.model.branches``)."""
        logits: torch.Tensor = self.over_arch(self.inter_arch(self.vectors(dense_features, sparse_features)))
        return logits


@torch.no_grad()
def draw_xavier(part: nn.Module) -> None:
    """Draws the weights of all linear layers of ``part`` as FuxiCTR does: N(0, 2 / (inputs + outputs)), biases 0."""
    for layer in part.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            if layer.bias is not None:
                layer.bias.zero_()


def name_vectors(widths: Mapping[str, int], dense: Names) -> tuple[list[Hashable], dict[str, Axes]]:
    """(the names of the W values, the axes of the dense features' vectors), as ``Architecture.name_axes`` wants them."""
    width = next(iter(widths.values()))
    return places({**dict.fromkeys(dense, width), **widths}), {"dense_arch.weight": (dense, None)}
