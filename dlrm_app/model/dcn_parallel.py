"""DCNv2 in parallel: full-rank cross layers beside an MLP over the same input (Wang et al. 2021,
arXiv:2008.13535, figure 1b).

As in BARS' DCNv2, every dense feature has a vector too: its value times learnt weights.
Shapes: B batch rows, W width of all vectors.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.mlp import MLP
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from dlrm_app.config.train import ModelConfig
from dlrm_app.model.axes import Axes, Names, first_layer
from dlrm_app.model.feature_vectors import FeatureVectors, name_vectors


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


class ParallelModel(FeatureVectors):
    """The model; its parts have the names that they have in torchrec's models. ``make_layers``: W → its cross layers."""

    def __init__(
        self,
        bags: EmbeddingBagCollection,
        num_dense: int,
        make_layers: Callable[[int], nn.Module],
        widths: Sequence[int],
        deviation: float | None = None,
    ) -> None:
        super().__init__(bags, num_dense, deviation)
        self.inter_arch = make_layers(self.width)
        self.over_arch = ParallelHead(self.width, widths)

    def forward(self, dense_features: torch.Tensor, sparse_features: KeyedJaggedTensor) -> torch.Tensor:
        """Logits [B, 1]."""
        first = self.vectors(dense_features, sparse_features)
        return self.over_arch(first, self.inter_arch(first))


def build(
    config: ModelConfig, bags: EmbeddingBagCollection, num_dense: int, bottom: list[int], top: list[int]
) -> nn.Module:
    assert config.dcn_num_layers is not None
    make_layers = partial(CrossLayers, num_layers=config.dcn_num_layers)
    return ParallelModel(bags, num_dense, make_layers, top[:-1])


def name_axes(config: ModelConfig, widths: Mapping[str, int], dense: Names) -> dict[str, Axes]:
    """Every cross layer reads and writes all vectors."""
    inputs, axes = name_vectors(widths, dense)
    for layer in range(config.dcn_num_layers or 0):
        axes[f"inter_arch.layers.{layer}.weight"] = (inputs, inputs)
        axes[f"inter_arch.layers.{layer}.bias"] = (inputs,)
    return axes | name_head(config, inputs)


def name_head(config: ModelConfig, inputs: Names) -> dict[str, Axes]:
    """The last layer reads the cross layers' output, then the MLP's; the MLP reads ``inputs``, as they do."""
    *hidden, last = config.top_mlp
    of_mlp = [("", place) for place in range(hidden[-1] if last == 1 and hidden else last)]
    return {"over_arch.last.weight": (None, [*inputs, *of_mlp])} | first_layer("over_arch.mlp", inputs)
