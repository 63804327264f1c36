"""DCNv2's low-rank cross layers (Wang et al. 2021, arXiv:2008.13535) with few passes over the memory beside their products.

Shapes: B batch rows, N width of a row, R rank.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torchrec.modules.crossnet import LowRankCrossNet

from dlrm_app.kernels.products import is_for_onednn, multiply, product_dtype, weights_gradient


class LowRankCross(LowRankCrossNet):
    """``net``, [B, N] → [B, N], with its own weights: x ← x₀ · (W V x + b) + x, layer by layer."""

    def __init__(self, net: LowRankCrossNet) -> None:
        nn.Module.__init__(self)  # no weights beside net's
        self._num_layers = net._num_layers
        self.W_kernels, self.V_kernels, self.bias = net.W_kernels, net.V_kernels, net.bias

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """x after the last layer; ``input`` is x₀."""
        if not is_for_onednn(input):
            return super().forward(input)
        dtype = product_dtype(input)
        layers = zip(self.V_kernels, self.W_kernels, self.bias, strict=True)
        factors = [weight.to(dtype) for layer in layers for weight in layer]
        crossed: torch.Tensor = _LowRankCross.apply(input, *factors)  # type: ignore[no-untyped-call]
        return crossed


class _LowRankCross(torch.autograd.Function):
    """Products in the weights' type, all else in x₀'s."""

    @staticmethod
    def forward(ctx: FunctionCtx, first: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        crossed, kept = first, []
        for inner, outer, bias in _by_layer(weights):
            factor = crossed.to(inner.dtype)
            hidden = multiply(factor, inner)
            scale = multiply(hidden, outer, bias)
            kept += [factor, hidden, scale]
            crossed = torch.addcmul(crossed, first, scale)
        ctx.save_for_backward(first, *weights, *kept)
        return crossed

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, *saved = ctx.saved_tensors  # type: ignore[attr-defined]
        layers = zip(_by_layer(saved[: len(saved) // 2]), _by_layer(saved[len(saved) // 2 :]), strict=True)
        of_first: torch.Tensor = torch.zeros_like(first)
        of_weights: list[torch.Tensor] = []
        for (inner, outer, _), (factor, hidden, scale) in reversed(list(layers)):
            of_first.addcmul_(gradient, scale)
            of_scale = (gradient * first).to(outer.dtype)
            of_hidden = multiply(of_scale, outer.t())
            of_inner, of_outer = weights_gradient(of_hidden, factor), weights_gradient(of_scale, hidden)
            of_weights = [of_inner, of_outer, of_scale.sum(0), *of_weights]
            gradient = gradient + multiply(of_hidden, inner.t())
        return of_first.add_(gradient), *of_weights


def _by_layer(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    """Three tensors a layer."""
    return [tuple(tensors[k : k + 3]) for k in range(0, len(tensors), 3)]
