"""Linear layers followed by ReLU, by the faster of the libraries that torch brings for the CPU.

Shapes: B batch rows, I inputs, O outputs.
"""

import torch
from torch import nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torchrec.modules.mlp import Perceptron

from dlrm_app.model.layers.traced import is_traced

# oneDNN multiplies with weights 5 to 15% faster than MKL, which torch takes for float32 products, but not B rows with
# B rows (docs/experiments.md). Its own ReLU makes 0 of nan, which must be seen: so that is left to torch.
_HAS_ONEDNN = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")

_FEW = 32
"""Inputs: as many as a model has dense features."""


def speed_up(model: nn.Module) -> nn.Module:
    """``model`` with every Perceptron that ends in ReLU computed this way; its parameters keep their names."""
    for name, child in list(model.named_children()):
        if type(child) is Perceptron and child._activation_fn is torch.relu:
            setattr(model, name, LinearRelu(child))
        else:
            speed_up(child)
    return model


class LinearRelu(nn.Module):
    """``perceptron``, [B, I] → [B, O], with its own linear layer."""

    def __init__(self, perceptron: Perceptron) -> None:
        super().__init__()
        self._linear = perceptron._linear

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """relu(inputs Wᵀ + b)."""
        weight, bias = self._linear.weight, self._linear.bias
        if not _HAS_ONEDNN or is_traced(inputs) or inputs.device.type != "cpu":
            return torch.relu(self._linear(inputs))
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            inputs, weight, bias = inputs.to(dtype), weight.to(dtype), bias.to(dtype)
        return _LinearRelu.apply(inputs, weight, bias)  # type: ignore[no-untyped-call]


class _LinearRelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        outputs = _multiply(inputs, weight, bias).relu_()
        ctx.save_for_backward(inputs, weight, outputs)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(
        ctx: FunctionCtx, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
        inputs, weight, outputs = ctx.saved_tensors  # type: ignore[attr-defined]
        gradient = torch.ops.aten.threshold_backward(gradient, outputs, 0)
        of_inputs = _multiply(gradient, weight.t(), None) if ctx.needs_input_grad[0] else None  # type: ignore[attr-defined]
        return of_inputs, _weights_gradient(gradient, inputs), gradient.sum(0)


def _weights_gradient(gradient: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """``gradient`` [B, O] transposed · ``inputs`` [B, I]; for few inputs as its transpose, which MKL takes half the time for."""
    if inputs.size(1) < _FEW:
        return inputs.t().mm(gradient).t().contiguous()
    return gradient.t().mm(inputs)


def _multiply(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``inputs`` [B, I] · ``weight`` [O, I] transposed, + ``bias`` [O]."""
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
