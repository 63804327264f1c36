"""Concatenates embeddings of any widths, averages them in strides if ``stride`` is set, and applies one MLP.

The synthetic models of NVIDIA Merlin's distributed-embeddings (examples/benchmarks/synthetic_models).
Shapes: B batch rows, N dense features, W the widths of all features' embeddings added up.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional as F
from torchrec.models.dlrm import OverArch
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from dlrm_app.config.train import ModelConfig
from dlrm_app.model.axes import Axes, Names, first_layer, places


class ConcatSparseArch(nn.Module):
    """The pooled embeddings of every feature, [B, W], in the order of the tables for every sharding."""

    def __init__(self, bags: EmbeddingBagCollection) -> None:
        super().__init__()
        self.embedding_bag_collection = bags
        self._features = [name for config in bags.embedding_bag_configs() for name in config.feature_names]

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        pooled = self.embedding_bag_collection(features).to_dict()
        return torch.cat([pooled[name] for name in self._features], dim=1)


class StridedMean(nn.Module):
    """[B, W] → [B, ceil(W / stride)]: means of windows of ``stride`` neighbours that do not overlap.

    Same as Keras' AveragePooling1D(stride, padding="same"): padding completes the windows, half of it (rounded down)
    before the first value and half after the last, and is not counted in the means.
    """

    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.width = -(-width // stride)
        self._stride = stride
        self._missing_in_front = (self.width * stride - width) // 2

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return F.avg_pool1d(
            values, self._stride, padding=self._missing_in_front, ceil_mode=True, count_include_pad=False
        )


class ConcatModel(nn.Module):
    """An MLP over embeddings [B, W], or their strided means, concatenated with the dense features [B, N]."""

    def __init__(
        self, bags: EmbeddingBagCollection, num_dense: int, mlp: Sequence[int], stride: int | None
    ) -> None:
        super().__init__()
        width = sum(
            config.embedding_dim * len(config.feature_names) for config in bags.embedding_bag_configs()
        )
        self.sparse_arch = ConcatSparseArch(bags)
        pooling = None if stride is None else StridedMean(width, stride)
        self.dense_arch = nn.Identity()
        self.inter_arch: nn.Module = pooling or nn.Identity()
        self.over_arch = OverArch((pooling.width if pooling else width) + num_dense, list(mlp))

    def forward(self, dense_features: torch.Tensor, sparse_features: KeyedJaggedTensor) -> torch.Tensor:
        """Logits [B, 1]."""
        crossed = self.inter_arch(self.sparse_arch(sparse_features))
        return self.over_arch(torch.cat([crossed, self.dense_arch(dense_features)], dim=1))


def build(
    config: ModelConfig, bags: EmbeddingBagCollection, num_dense: int, bottom: list[int], top: list[int]
) -> nn.Module:
    return ConcatModel(bags, num_dense, top, config.stride)


def name_axes(config: ModelConfig, widths: Mapping[str, int], dense: Names) -> dict[str, Axes]:
    """The MLP reads all vectors, or means over windows of ``stride`` neighbours, and the dense features."""
    inputs = places(widths)
    if stride := config.stride:
        starts = range(-(-len(inputs) % stride // 2), len(inputs), stride)
        inputs = [frozenset(inputs[max(start, 0) : start + stride]) for start in starts]
    return first_layer("over_arch.model.0", [*inputs, *dense])
