"""Linear layers followed by ReLU, in one pass over their outputs.

Shapes: B batch rows, I inputs, O outputs.
"""

import torch
from torch import nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torchrec.modules.mlp import Perceptron

from dlrm_app.kernels.products import is_for_onednn, multiply, product_dtype, weights_gradient


class LinearRelu(nn.Module):
    """``perceptron``, [B, I] → [B, O], with its own linear layer."""

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
    # oneDNN's own ReLU makes 0 of nan, which must be seen: so that is left to torch
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
