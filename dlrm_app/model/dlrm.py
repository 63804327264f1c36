"""torchrec's DLRM, DCNv2 and projection models. They look up tables first and keep the embeddings as one tensor.

Embeddings are looked up and sent between ranks while the bottom MLP is computed. In the backward pass, which
runs in the opposite order, their gradients are sent during the bottom MLP's backward pass. B batch rows, F
sparse features, D width.
"""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import torch
from torch import fx, nn
from torch.autograd.function import FunctionCtx
from torchrec.distributed.types import LazyAwaitable
from torchrec.models.dlrm import DLRM, DLRM_DCN, DLRM_Projection, SparseArch
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from dlrm_app.config.train import ModelConfig
from dlrm_app.model.axes import Axes, Names, first_layer, places

_BOTTOM = ""
"""The name of the bottom MLP's vector among the features'; no feature has an empty name."""


class OrderedSparseArch(SparseArch):
    """torchrec's SparseArch. Its result [B, F, D] is a view of the lookup's output if that has the features' order."""

    def __init__(self, bags: EmbeddingBagCollection) -> None:
        super().__init__(bags)
        self.stack = _Stack(self.sparse_feature_names, self.D)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        """Ids of F features → [B, F, D], or an awaitable of it."""
        pooled = self.embedding_bag_collection(features)
        return (
            _PendingEmbeddings(pooled, self.stack)
            if isinstance(pooled, LazyAwaitable)
            else self.stack(pooled)
        )


class SparseFirst(nn.Module):
    """A mixin, put before one of torchrec's models among the base classes: looks up tables before the bottom MLP."""

    dense_arch: nn.Module
    inter_arch: nn.Module
    over_arch: nn.Module

    def __init__(self, bags: EmbeddingBagCollection, *arguments: object) -> None:
        super().__init__(bags, *arguments)
        self.sparse_arch = OrderedSparseArch(bags)

    def forward(self, dense_features: torch.Tensor, sparse_features: KeyedJaggedTensor) -> torch.Tensor:
        """Logits [B, 1]."""
        embedded_sparse = self.sparse_arch(sparse_features)
        embedded_dense = self.dense_arch(dense_features)
        if isinstance(embedded_sparse, LazyAwaitable):
            embedded_sparse = embedded_sparse.wait()
        crossed = self.inter_arch(embedded_dense, embedded_sparse)
        logits: torch.Tensor = self.over_arch(crossed)
        return logits


class _PendingEmbeddings(LazyAwaitable[torch.Tensor]):
    def __init__(self, pooled: KeyedTensor, stack: nn.Module) -> None:
        super().__init__()
        self._pooled = pooled
        self._stack = stack

    def _wait_impl(self) -> torch.Tensor:
        stacked: torch.Tensor = self._stack(self._pooled)
        return stacked


class _Stack(nn.Module):
    """Brings pooled embeddings into the features' order. It is a module, so that the pipelines trace it as one node."""

    def __init__(self, features: list[str], dim: int) -> None:
        super().__init__()
        self._features = features
        self._dim = dim
        self._order: torch.Tensor | None = None

    def forward(self, pooled: KeyedTensor) -> torch.Tensor:
        if isinstance(pooled, fx.Proxy):
            by_name: Any = pooled.to_dict()
            traced: torch.Tensor = torch.cat([by_name[name] for name in self._features], dim=1)
            return traced.reshape(-1, len(self._features), self._dim)
        keys: list[str] = pooled.keys()
        values = pooled.values().view(-1, len(self._features), self._dim)
        if keys == self._features:
            return values
        # made once, since it depends on the sharding alone; a copy to the GPU in every step would wait for the GPU
        if self._order is None:
            self._order = torch.tensor([keys.index(name) for name in self._features], device=values.device)
        ordered: torch.Tensor = _Ordered.apply(values, self._order)  # type: ignore[no-untyped-call]
        return ordered


class _Ordered(torch.autograd.Function):
    """Reorders the features of ``values`` [B, F, D], with one operation forward and one backward."""

    @staticmethod
    def forward(ctx: FunctionCtx, values: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(order)
        return values.index_select(1, order)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (order,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return gradient.index_select(1, order.argsort()), None


class DotModel(SparseFirst, DLRM):
    """Pairwise dot products of the features' vectors (Naumov et al. 2019, arXiv:1906.00091)."""


class CrossModel(SparseFirst, DLRM_DCN):
    """Low-rank cross layers (Wang et al. 2021, arXiv:2008.13535), as MLPerf's DLRM-DCNv2 has them."""


class ProjectionModel(SparseFirst, DLRM_Projection):
    """Dot products between two learned mixtures of the features' vectors."""


def build_dlrm(
    config: ModelConfig, bags: EmbeddingBagCollection, num_dense: int, bottom: list[int], top: list[int]
) -> nn.Module:
    return DotModel(bags, num_dense, bottom, top)


def build_dcn(
    config: ModelConfig, bags: EmbeddingBagCollection, num_dense: int, bottom: list[int], top: list[int]
) -> nn.Module:
    assert config.dcn_num_layers is not None
    assert config.dcn_low_rank_dim is not None
    return CrossModel(bags, num_dense, bottom, top, config.dcn_num_layers, config.dcn_low_rank_dim)


def build_projection(
    config: ModelConfig, bags: EmbeddingBagCollection, num_dense: int, bottom: list[int], top: list[int]
) -> nn.Module:
    """Builds the projection model. ``projection_branch1`` and ``2`` end with the number of vectors of each mixture."""
    assert config.projection_branch1 is not None
    assert config.projection_branch2 is not None
    dim = bags.embedding_bag_configs()[0].embedding_dim
    *hidden1, num_vectors1 = config.projection_branch1
    *hidden2, num_vectors2 = config.projection_branch2
    branches = [*hidden1, num_vectors1 * dim], [*hidden2, num_vectors2 * dim]
    return ProjectionModel(bags, num_dense, bottom, top, *branches)


def name_axes_of_dlrm(config: ModelConfig, widths: Mapping[str, int], dense: Names) -> dict[str, Axes]:
    """The top MLP reads the bottom MLP's vector and the dot product of each pair of vectors."""
    with_bottom = _with_bottom(widths)
    pairs = [frozenset(pair) for pair in combinations(with_bottom, 2)]
    inputs = [*places({_BOTTOM: with_bottom[_BOTTOM]}), *pairs]
    return first_layer("dense_arch.model", dense) | first_layer("over_arch.model.0", inputs)


def name_axes_of_dcn(config: ModelConfig, widths: Mapping[str, int], dense: Names) -> dict[str, Axes]:
    """Every cross layer reads and writes all vectors."""
    inputs = places(_with_bottom(widths))
    axes = first_layer("dense_arch.model", dense) | first_layer("over_arch.model.0", inputs)
    for layer in range(config.dcn_num_layers or 0):
        axes[f"inter_arch.crossnet.V_kernels.{layer}"] = (None, inputs)
        axes[f"inter_arch.crossnet.W_kernels.{layer}"] = (inputs, None)
        axes[f"inter_arch.crossnet.bias.{layer}"] = (inputs,)
    return axes


def name_axes_of_projection(config: ModelConfig, widths: Mapping[str, int], dense: Names) -> dict[str, Axes]:
    """Both branches read all vectors."""
    inputs = places(_with_bottom(widths))
    axes = first_layer("dense_arch.model", dense)
    for branch in ("interaction_branch1", "interaction_branch2"):
        axes |= first_layer(f"inter_arch.{branch}.model", inputs)
    return axes


def _with_bottom(widths: Mapping[str, int]) -> dict[str, int]:
    return {_BOTTOM: next(iter(widths.values())), **widths}
