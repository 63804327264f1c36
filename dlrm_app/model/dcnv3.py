"""DCNv3: two cross networks without an MLP, whose orders grow exponentially and linearly, each taught by its own loss
(Li et al. 2024, arXiv:2407.13349).

As the authors' code has it; initial weights are that code's. Shapes: B batch rows, F features,
the dense ones too, D the tables' width, H heads, w = F · D / H width of a head.
"""

from collections.abc import Mapping

import torch
from torch import nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dlrm_app.config.train import ModelConfig
from dlrm_app.model.axes import Axes, Names
from dlrm_app.model.branches import BranchHeads
from dlrm_app.model.feature_vectors import SMALL, VectorModel, draw_xavier
from dlrm_app.model.regularization import SyncedBatchNorm


class HeadNorm(nn.Module):
    """Batch norm of [B, H, …], with one mean and scale for each head, over the rows of all ranks."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.norm = SyncedBatchNorm(num_heads)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        by_head = values.transpose(1, 2)  # [B, …, H]
        return self.norm(by_head.flatten(0, 1)).view(by_head.shape).transpose(1, 2)


class MaskedCross(nn.Module):
    """(factor, x), both [B, H, w] → factor · (h + b) + x, where h is W x and, behind it, W x masked by itself.

    The mask is the ReLU of the layer norm of W x [B, H, w / 2].
    """

    def __init__(
        self, width: int, num_heads: int, batch_norm: bool, layer_norm: bool, dropout: float
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width // 2, bias=False)
        self.bias = nn.Parameter(torch.empty(width).uniform_())
        self.batch_norm = HeadNorm(num_heads) if batch_norm else nn.Identity()
        self.layer_norm = nn.LayerNorm(width // 2) if layer_norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def forward(self, factor: torch.Tensor, crossed: torch.Tensor) -> torch.Tensor:
        half = self.batch_norm(self.linear(crossed))
        both = torch.cat([half, half * self.layer_norm(half).relu()], dim=-1)
        return self.dropout(factor * (both + self.bias) + crossed)


class TwoCrossNetworks(nn.Module):
    """Vectors side by side [B, F · D] → both networks' results [B, 2, H, w]: the exponential one's, the linear one's."""

    def __init__(self, num_features: int, dim: int, config: ModelConfig) -> None:
        super().__init__()
        self._num_features, self._num_heads = num_features, config.num_heads or 1
        linear_dropout = config.dcnv3_linear_dropout
        self.exponential = self._make_layers(dim, config, config.dcn_num_layers, config.dropout)
        self.linear = self._make_layers(
            dim,
            config,
            config.dcnv3_num_linear_layers,
            config.dropout if linear_dropout is None else linear_dropout,
        )

    def _make_layers(
        self, dim: int, config: ModelConfig, num_layers: int | None, dropout: float
    ) -> nn.ModuleList:
        assert num_layers is not None
        width, num_heads = self._num_features * dim // self._num_heads, self._num_heads
        kind = config.batch_norm, config.dcnv3_layer_norm, dropout
        return nn.ModuleList(MaskedCross(width, num_heads, *kind) for _ in range(num_layers))

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        first = self._split_heads(vectors)
        exponential = linear = first
        for layer in self.exponential:
            exponential = layer(exponential, exponential)
        for layer in self.linear:
            linear = layer(first, linear)
        return torch.stack([exponential, linear], dim=1)

    def _split_heads(self, vectors: torch.Tensor) -> torch.Tensor:
        """[B, F · D] → [B, H, w]: in a head the first halves of all features' shares, then the second halves."""
        shares = torch.unflatten(vectors, 1, (self._num_features, self._num_heads, 2, -1))
        return shares.permute(0, 2, 3, 1, 4).flatten(2)


class CrossHeads(nn.Module):
    """[B, 2, H, w] → logits [B, 1 + 2] in training, [B, 1] in evaluation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = BranchHeads([width, width])

    def forward(self, crossed: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.heads([crossed[:, 0], crossed[:, 1]])
        return logits


class Dcnv3(VectorModel):
    """The model. Each of several labels has last layers of its own."""

    def __init__(self, bags: EmbeddingBagCollection, num_dense: int, config: ModelConfig) -> None:
        super().__init__(bags, num_dense, SMALL)
        self.inter_arch = TwoCrossNetworks(self.num_vectors, self.dim, config)
        self.over_arch = CrossHeads(self.width // (config.num_heads or 1))
        draw_xavier(self.inter_arch)
        draw_xavier(self.over_arch)


def build(
    config: ModelConfig, bags: EmbeddingBagCollection, num_dense: int, bottom: list[int], top: list[int]
) -> nn.Module:
    return Dcnv3(bags, num_dense, config)


def name_axes(config: ModelConfig, widths: Mapping[str, int], dense: Names) -> dict[str, Axes]:
    """All heads share the layers' weights, which read the first halves of all features' shares, then the second ones."""
    share = next(iter(widths.values())) // (config.num_heads or 1) // 2
    half = [(name, place) for name in [*dense, *widths] for place in range(share)]
    inputs = [(part, *each) for part in range(2) for each in half]
    axes: dict[str, Axes] = {"dense_arch.weight": (dense, None)}
    counts = ("exponential", config.dcn_num_layers or 0), ("linear", config.dcnv3_num_linear_layers or 0)
    for network, count in counts:
        for number in range(count):
            layer = f"inter_arch.{network}.{number}"
            axes[f"{layer}.linear.weight"] = (half, inputs)
            axes[f"{layer}.bias"] = (inputs,)
            if config.dcnv3_layer_norm:
                axes |= {f"{layer}.layer_norm.weight": (half,), f"{layer}.layer_norm.bias": (half,)}
    return axes | {f"over_arch.heads.layers.{branch}.weight": (None, inputs) for branch in range(2)}
