"""Linear layers and DCNv2's low-rank cross layers on CPU: they use the faster of torch's libraries and fewer
passes over memory.

Replaces torchrec's Perceptron with ReLU and its LowRankCrossNet.
Shapes: B batch rows, I inputs, O outputs; N width of a cross layer.
"""

from collections.abc import Sequence
from functools import cache

import torch
from torch import nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torchrec.modules.crossnet import LowRankCrossNet
from torchrec.modules.mlp import Perceptron

# oneDNN multiplies inputs with weights 5 to 15% faster than MKL, which torch uses for float32. It multiplies B rows
# with B rows faster only on CPUs where MKL does not use the widest units (docs/experiments/training.md).
_HAS_ONEDNN = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")
_HAS_BF16 = _HAS_ONEDNN and torch.ops.mkldnn._is_mkldnn_bf16_supported()
"""False on CPUs without AVX-512, where oneDNN does not support bfloat16."""

_FEW_INPUTS = 32
"""Number of inputs below which ``weights_gradient`` multiplies the transpose: about the number of dense features."""


@cache
def _mkl_is_slow() -> bool:
    """True if MKL reaches half of the CPU's speed. It uses AVX-512 on Intel's CPUs only, and AMD's have wide
    units since Zen 5.

    Zen 5 is AMD's first CPU with both AVX-512 and AVX-VNNI.
    """
    capabilities = torch.cpu.get_capabilities()
    is_amd = "AMD" in str(capabilities.get("cpu_name"))
    return is_amd and bool(capabilities.get("avx512_f")) and bool(capabilities.get("avx_vnni"))


def is_for_onednn(inputs: torch.Tensor) -> bool:
    """True if ``multiply`` supports ``inputs``; otherwise plain operators are used."""
    if not _HAS_ONEDNN or is_traced(inputs) or inputs.device.type != "cpu":
        return False
    return _HAS_BF16 or product_dtype(inputs) != torch.bfloat16


def product_dtype(inputs: torch.Tensor) -> torch.dtype:
    """The type of the factors, which autocast chooses."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else inputs.dtype


def multiply(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``inputs`` [B, I] · ``weight`` [O, I] transposed, + ``bias`` [O]; all of one type."""
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")


def weights_gradient(gradient: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """``gradient`` [B, O] transposed · ``inputs`` [B, I].

    With few inputs the transpose is computed, in half the time.
    """
    if inputs.size(1) < _FEW_INPUTS:
        return _multiply_rows(inputs, gradient).t().contiguous()
    return _multiply_rows(gradient, inputs)


def _multiply_rows(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """``left`` [B, I] transposed · ``right`` [B, O]. torch uses oneDNN for bfloat16 itself; oneDNN cannot sum
    an empty batch.
    """
    if left.dtype == torch.float32 and len(left) and _mkl_is_slow():
        return multiply(left.t(), right.t())
    return left.t().mm(right)


def is_traced(*inputs: object) -> bool:
    """True while the model is traced, compiled or exported: then only plain operators are understood."""
    is_read = torch.compiler.is_compiling() or torch._C._is_tracing()
    return is_read or not all(type(value) is torch.Tensor for value in inputs)


class LinearRelu(nn.Module):
    """Computes ``perceptron``, [B, I] → [B, O], with its linear layer and ReLU in one pass."""

    def __init__(self, perceptron: Perceptron) -> None:
        super().__init__()
        self._linear = perceptron._linear

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """relu(inputs Wᵀ + b)."""
        weight, bias = self._linear.weight, self._linear.bias
        if not is_for_onednn(inputs):
            return torch.relu(self._linear(inputs))
        dtype = product_dtype(inputs)
        return _LinearRelu.apply(inputs.to(dtype), weight.to(dtype), bias.to(dtype))  # type: ignore[no-untyped-call]


class _LinearRelu(torch.autograd.Function):
    # oneDNN's ReLU turns nan into 0, which would hide it, so torch's is used
    @staticmethod
    def forward(
        ctx: FunctionCtx, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        outputs = multiply(inputs, weight, bias).relu_()
        ctx.save_for_backward(inputs, weight, outputs)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(
        ctx: FunctionCtx, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
        inputs, weight, outputs = ctx.saved_tensors  # type: ignore[attr-defined]
        gradient = torch.ops.aten.threshold_backward(gradient, outputs, 0)
        of_inputs = multiply(gradient, weight.t()) if ctx.needs_input_grad[0] else None  # type: ignore[attr-defined]
        return of_inputs, weights_gradient(gradient, inputs), gradient.sum(0)


class LowRankCross(LowRankCrossNet):
    """Computes ``net``, [B, N] → [B, N], with its weights: x ← x₀ · (W V x + b) + x, layer by layer.

    Wang et al. 2021, arXiv:2008.13535.
    """

    def __init__(self, net: LowRankCrossNet) -> None:
        nn.Module.__init__(self)  # without new weights: net's are used
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
    """Computes products in the weights' type, everything else in x₀'s."""

    @staticmethod
    def forward(ctx: FunctionCtx, first: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        crossed, products = first, []
        for inner, outer, bias in _by_layer(weights):
            factor = crossed.to(inner.dtype)
            hidden = multiply(factor, inner)
            scale = multiply(hidden, outer, bias)
            products += [factor, hidden, scale]
            crossed = torch.addcmul(crossed, first, scale)
        ctx.save_for_backward(first, *weights, *products)
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
    return [tuple(tensors[k : k + 3]) for k in range(0, len(tensors), 3)]
