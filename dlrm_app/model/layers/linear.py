"""Linear layers by the faster of the libraries that torch brings for the CPU.

Shapes: B batch rows, I inputs, O outputs.
"""

import torch
from torch.autograd.function import FunctionCtx, once_differentiable

from dlrm_app.model.layers.traced import is_traced

# oneDNN multiplies with weights 5 to 15% faster than MKL, which torch takes for float32 products, but not B rows with
# B rows (docs/experiments.md).
_HAS_ONEDNN = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``inputs`` [B, I] · ``weight`` [O, I] transposed, + ``bias`` [O]."""
    if not is_for_onednn(inputs):
        return torch.nn.functional.linear(inputs, weight, bias)
    return _Linear.apply(*as_autocast(inputs, weight, bias))  # type: ignore[no-untyped-call, no-any-return]


def is_for_onednn(inputs: torch.Tensor) -> bool:
    """Whether it multiplies ``inputs`` faster; a reader of the model is to see plain operators."""
    return _HAS_ONEDNN and not is_traced(inputs) and inputs.device.type == "cpu"


def as_autocast(*tensors: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """``tensors`` in the type that autocast has products computed in, if it is on."""
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    dtype = torch.get_autocast_dtype("cpu")
    return tuple(None if tensor is None else tensor.to(dtype) for tensor in tensors)


def multiply(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """As ``linear``, without gradients."""
    outputs: torch.Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
    return outputs


def gradients(
    needs_inputs: bool, inputs: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
    """Those of inputs, if needed, weight and bias, from the outputs' ``gradient`` [B, O]."""
    of_inputs = multiply(gradient, weight.t(), None) if needs_inputs else None
    return of_inputs, gradient.t().mm(inputs), gradient.sum(0)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.has_bias = bias is not None  # type: ignore[attr-defined]
        return multiply(inputs, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: FunctionCtx, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
        inputs, weight = ctx.saved_tensors  # type: ignore[attr-defined]
        of_inputs, of_weight, of_bias = gradients(ctx.needs_input_grad[0], inputs, weight, gradient)  # type: ignore[attr-defined]
        return of_inputs, of_weight, of_bias if ctx.has_bias else None  # type: ignore[attr-defined]
