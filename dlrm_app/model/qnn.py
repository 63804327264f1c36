"""QNN-α: quadratic layers, each the products of all values with sums of ReLUs, which learn from their own ensemble
(Li et al. 2025, "Revisiting Feature Interactions from the Perspective of Quadratic Neural Networks for Click-through
Rate Prediction", arXiv:2505.17999).

As FuxiCTR's QNN_alpha. Shapes: B batch rows, F features, the dense ones too, D the tables' width, W = F · D, H heads, R
rows of the Khatri-Rao product, P passes: 2 in training with dropout, otherwise 1.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dlrm_app.config.train import ModelConfig
from dlrm_app.model.axes import Axes, Names
from dlrm_app.model.ensemble import logit_of_mean
from dlrm_app.model.feature_vectors import SMALL, VectorModel, draw_xavier, name_vectors
from dlrm_app.model.regularization import SyncedBatchNorm


class _DroppedSum(torch.autograd.Function):
    """[B, H, R, N] → [B, H, N]: ReLU, dropout and the sum over R in one, which keeps one byte a value for its gradient."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, dropout: float) -> torch.Tensor:
        kept = (hidden > 0) & _drawn(hidden, dropout)
        ctx.save_for_backward(kept)
        ctx.scale = 1 / (1 - dropout)
        return (hidden * kept).sum(2) * ctx.scale

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (kept,) = ctx.saved_tensors
        return (gradient * ctx.scale).unsqueeze(2) * kept, None


def _drawn(values: torch.Tensor, dropout: float) -> torch.Tensor:
    """True for all ``values`` but a share ``dropout``, which CPUs round to 1/65,536.

    For a draw of its own for each value, as torch's dropout has it, a CPU needs as long as for products of matrices. Here
    64 bits are for four.
    """
    if values.device.type != "cpu":
        return torch.rand_like(values, dtype=torch.float32) >= dropout
    draws = torch.empty(-(-values.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = draws.view(torch.int16)[: values.numel()].view(values.shape)
    return bits >= min(round(dropout * 2**16), 2**16 - 1) - 2**15


def sum_relus(hidden: torch.Tensor, dropout: float) -> torch.Tensor:
    """[B, H, R, N] → [B, H, N]: the sum over R of ReLUs, of which a share ``dropout`` is left out."""
    # a compiler joins these by itself
    if not dropout or torch.compiler.is_compiling() or isinstance(hidden, fx.Proxy):
        return nn.functional.dropout(torch.relu(hidden), dropout).sum(2)
    summed: torch.Tensor = _DroppedSum.apply(hidden, dropout)  # type: ignore[no-untyped-call]
    return summed


class QuadraticLayer(nn.Module):
    """[B, W] x → [B, W]: x by heads times the sum over R of ReLUs of linear layers, plus x.

    With several heads the products stand head by head and x feature by feature, as in the authors' code.
    """

    def __init__(self, num_features: int, dim: int, config: ModelConfig) -> None:
        super().__init__()
        self._num_features, self._num_heads = num_features, config.num_heads or 1
        width, self._num_rows = num_features * dim, config.qnn_num_rows or 1
        self.linear = nn.Linear(width, width * self._num_rows)
        self.norm = SyncedBatchNorm(width * self._num_rows) if config.batch_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.products(values, self.linear(values))

    def products(self, values: torch.Tensor, linear: torch.Tensor) -> torch.Tensor:
        """The output, of the input and what ``linear`` makes of it."""
        hidden = torch.unflatten(self.norm(linear), 1, (self._num_heads, self._num_rows, -1))
        factors = sum_relus(hidden, self.dropout.p if self.training else 0.0).flatten(1)
        return self.dropout(self._by_heads(values) * factors + values)

    def _by_heads(self, values: torch.Tensor) -> torch.Tensor:
        """[B, W] with the first share of every feature first, then the second ones."""
        if self._num_heads == 1:
            return values
        shares = torch.unflatten(values, 1, (self._num_features, self._num_heads, -1))
        return shares.transpose(1, 2).flatten(1)


class QuadraticLayers(nn.Module):
    """[B, W] → [B, P, W]: passes that differ in their dropout alone."""

    def __init__(self, num_features: int, dim: int, config: ModelConfig) -> None:
        super().__init__()
        assert config.dcn_num_layers is not None
        layers = [QuadraticLayer(num_features, dim, config) for _ in range(config.dcn_num_layers)]
        self.layers = nn.Sequential(*layers)
        self._passes = 2 if config.dropout else 1

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        first, others = self.layers[0], self.layers[1:]
        assert isinstance(first, QuadraticLayer)
        linear = first.linear(vectors)  # equal in all passes
        passes = [
            others(first.products(vectors, linear)) for _ in range(self._passes if self.training else 1)
        ]
        return torch.stack(passes, dim=1)


class PassHead(nn.Module):
    """[B, P, W] → logits: the score's and each pass's, [B, 1 + P], in training, [B, 1] in evaluation.

    The score is the mean of the passes' probabilities.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.last = nn.Linear(width, 1)

    def forward(self, passes: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(passes).squeeze(2)  # [B, P]
        if not self.training:
            return logits
        both = logits.expand(-1, 2)  # a single pass is taught twice, like two that are equal
        return torch.cat([logit_of_mean(both.t()).unsqueeze(1), both], dim=1)


class QuadraticModel(VectorModel):
    """The model. Each of several labels has a last layer of its own."""

    def __init__(self, bags: EmbeddingBagCollection, num_dense: int, config: ModelConfig) -> None:
        super().__init__(bags, num_dense, SMALL)
        self.inter_arch = QuadraticLayers(self.num_vectors, self.dim, config)
        self.over_arch = PassHead(self.width)
        draw_xavier(self.inter_arch)
        draw_xavier(self.over_arch)


def build(
    config: ModelConfig, bags: EmbeddingBagCollection, num_dense: int, bottom: list[int], top: list[int]
) -> nn.Module:
    return QuadraticModel(bags, num_dense, config)


def name_axes(config: ModelConfig, widths: Mapping[str, int], dense: Names) -> dict[str, Axes]:
    """A place of a layer's output belongs to the value there and to the one that stands there by heads."""
    inputs, axes = name_vectors(widths, dense)
    heads, rows = config.num_heads or 1, config.qnn_num_rows or 1
    share = next(iter(widths.values())) // heads
    by_heads = [
        (name, head * share + place)
        for head in range(heads)
        for name in [*dense, *widths]
        for place in range(share)
    ]
    size = len(inputs) // heads  # of a head
    outputs = [
        (row, by_heads[place], inputs[place])
        for head in range(heads)
        for row in range(rows)
        for place in range(head * size, (head + 1) * size)
    ]
    for number in range(config.dcn_num_layers or 0):
        layer = f"inter_arch.layers.{number}"
        axes |= {f"{layer}.linear.weight": (outputs, inputs), f"{layer}.linear.bias": (outputs,)}
        if config.batch_norm:
            moments = ("weight", "bias", "running_mean", "running_var")
            axes |= {f"{layer}.norm.{name}": (outputs,) for name in moments}
    return axes | {"over_arch.last.weight": (None, inputs)}
