"""FinalNet: two stacks of factorized interactions over the same vectors, which learn from each other (Zhu et al. 2023,
"FINAL: Factorized Interaction Layer for CTR Prediction", SIGIR, doi:10.1145/3539618.3591988).

As FuxiCTR's FinalNet with two blocks, whose residuals are concatenated; initial weights are FuxiCTR's.
Shapes: B batch rows, F features, the dense ones too, D the tables' width, W = F · D.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dlrm_app.config.train import ModelConfig
from dlrm_app.model.axes import Axes, Names
from dlrm_app.model.branches import BranchHeads
from dlrm_app.model.feature_vectors import VectorModel, draw_xavier, name_vectors
from dlrm_app.model.regularization import SyncedBatchNorm


class FeatureGates(nn.Module):
    """[B, W] → [B, 2 W]: all vectors, then each times its gates, which are linear in all vectors at the same place."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, num_features)
        nn.init.zeros_(self.linear.weight)
        nn.init.ones_(self.linear.bias)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        stacked = torch.unflatten(vectors, 1, (self.linear.in_features, -1))  # [B, F, D]
        gates = self.linear(stacked.transpose(1, 2)).transpose(1, 2)
        return torch.cat([vectors, (stacked * gates).flatten(1)], dim=1)


class FactorizedInteraction(nn.Module):
    """[B, inputs] → [B, outputs]: half of a linear layer, and its product with the other half; then batch norm, ReLU
    and dropout, as far as they are wanted.
    """

    def __init__(self, inputs: int, outputs: int, batch_norm: bool, relu: bool, dropout: float) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.norm = SyncedBatchNorm(outputs) if batch_norm else nn.Identity()
        self.activation = nn.ReLU() if relu else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        plain, factor = self.linear(values).chunk(2, dim=1)
        return self.dropout(self.activation(self.norm(torch.cat([plain, factor * plain], dim=1))))


def make_block(
    inputs: int, widths: Sequence[int], batch_norm: bool, relu: bool, dropout: float
) -> nn.Sequential:
    """Makes a stack of factorized interactions of ``widths``, over ``inputs`` values."""
    pairs = zip([inputs, *widths], widths, strict=False)
    return nn.Sequential(*(FactorizedInteraction(*pair, batch_norm, relu, dropout) for pair in pairs))


class TwoBlocks(nn.Module):
    """[B, W], or [B, 2 W] with gated vectors behind them, → logits [B, 1 + 2] in training, [B, 1] in evaluation.

    The first block reads all, the second the plain vectors alone.
    """

    def __init__(self, width: int, first: nn.Sequential, second: nn.Sequential, ends: Sequence[int]) -> None:
        super().__init__()
        self._width = width
        self.block1, self.block2 = first, second
        self.heads = BranchHeads(ends)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.heads([self.block1(vectors), self.block2(vectors[:, : self._width])])
        return logits


class FinalNet(VectorModel):
    """The model. Each of several labels has blocks of its own."""

    def __init__(
        self, bags: EmbeddingBagCollection, num_dense: int, config: ModelConfig, mlp: list[int]
    ) -> None:
        super().__init__(bags, num_dense)
        width, mlp2 = self.width, config.finalnet_mlp2 or mlp
        dropout2 = config.dropout if config.finalnet_dropout2 is None else config.finalnet_dropout2
        kind = config.batch_norm, config.finalnet_relu
        first = make_block(2 * width if config.finalnet_gates else width, mlp, *kind, config.dropout)
        second = make_block(width, mlp2, *kind, dropout2)
        self.over_arch = TwoBlocks(width, first, second, [mlp[-1], mlp2[-1]])
        draw_xavier(self.over_arch)
        self.inter_arch = FeatureGates(self.num_vectors) if config.finalnet_gates else nn.Identity()


def build(
    config: ModelConfig, bags: EmbeddingBagCollection, num_dense: int, bottom: list[int], top: list[int]
) -> nn.Module:
    return FinalNet(bags, num_dense, config, top[:-1])


def name_axes(config: ModelConfig, widths: Mapping[str, int], dense: Names) -> dict[str, Axes]:
    """The second block reads all vectors; the first one also those that gates have multiplied."""
    inputs, axes = name_vectors(widths, dense)
    axes["over_arch.block2.0.linear.weight"] = (None, inputs)
    if config.finalnet_gates:
        features = [*dense, *widths]
        axes["inter_arch.linear.weight"] = (features, features)
        axes["inter_arch.linear.bias"] = (features,)
        inputs = [*inputs, *(("gated", each) for each in inputs)]
    return axes | {"over_arch.block1.0.linear.weight": (None, inputs)}
