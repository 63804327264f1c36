"""GDCN: cross layers of which a gate lets a part through, then an MLP (Wang et al. 2023, arXiv:2311.04635, GDCN-S), or
beside an MLP over the same input (GDCN-P).

Initial weights are those of FuxiCTR's GDCN. Shapes: B batch rows, W width of all vectors.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import nn
from torchrec.models.dlrm import OverArch
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dlrm_app.config.train import ModelConfig
from dlrm_app.model.axes import Axes, Names, first_layer
from dlrm_app.model.dcn_parallel import ParallelModel, name_head
from dlrm_app.model.feature_vectors import SMALL, VectorModel, draw_xavier, name_vectors


class GatedCross(nn.Module):
    """([B, W] x₀, [B, W] x) → [B, W]: x₀ · (W x + b) · σ(G x) + x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cross = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.empty(width).uniform_())

    def forward(self, first: torch.Tensor, crossed: torch.Tensor) -> torch.Tensor:
        return first * (self.cross(crossed) + self.bias) * torch.sigmoid(self.gate(crossed)) + crossed


class GatedCrossLayers(nn.Module):
    """[B, W] → [B, W], layer by layer."""

    def __init__(self, width: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GatedCross(width) for _ in range(num_layers))

    def forward(self, first: torch.Tensor) -> torch.Tensor:
        crossed = first
        for layer in self.layers:
            crossed = layer(first, crossed)
        return crossed


class GatedModel(VectorModel):
    """GDCN-S: the MLP reads the cross layers."""

    def __init__(
        self, bags: EmbeddingBagCollection, num_dense: int, num_layers: int, mlp: Sequence[int]
    ) -> None:
        super().__init__(bags, num_dense, SMALL)
        self.inter_arch = GatedCrossLayers(self.width, num_layers)
        self.over_arch = OverArch(self.width, list(mlp))
        draw_xavier(self.inter_arch)
        draw_xavier(self.over_arch)


def build(
    config: ModelConfig, bags: EmbeddingBagCollection, num_dense: int, bottom: list[int], top: list[int]
) -> nn.Module:
    assert config.dcn_num_layers is not None
    return GatedModel(bags, num_dense, config.dcn_num_layers, top)


def build_parallel(
    config: ModelConfig, bags: EmbeddingBagCollection, num_dense: int, bottom: list[int], top: list[int]
) -> nn.Module:
    """GDCN-P: the last layer reads the cross layers and an MLP over all vectors."""
    assert config.dcn_num_layers is not None
    make_layers = partial(GatedCrossLayers, num_layers=config.dcn_num_layers)
    model = ParallelModel(bags, num_dense, make_layers, top[:-1], SMALL)
    draw_xavier(model.inter_arch)
    draw_xavier(model.over_arch)
    return model


def name_axes(config: ModelConfig, widths: Mapping[str, int], dense: Names) -> dict[str, Axes]:
    """The cross layers and the MLP behind them read all vectors."""
    inputs, axes = name_vectors(widths, dense)
    return axes | _name_layers(config, inputs) | first_layer("over_arch.model.0", inputs)


def name_axes_of_parallel(config: ModelConfig, widths: Mapping[str, int], dense: Names) -> dict[str, Axes]:
    """The cross layers and the MLP beside them read all vectors."""
    inputs, axes = name_vectors(widths, dense)
    return axes | _name_layers(config, inputs) | name_head(config, inputs)


def _name_layers(config: ModelConfig, inputs: Names) -> dict[str, Axes]:
    axes: dict[str, Axes] = {}
    for layer in range(config.dcn_num_layers or 0):
        axes[f"inter_arch.layers.{layer}.cross.weight"] = (inputs, inputs)
        axes[f"inter_arch.layers.{layer}.gate.weight"] = (inputs, inputs)
        axes[f"inter_arch.layers.{layer}.bias"] = (inputs,)
    return axes
