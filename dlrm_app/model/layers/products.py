"""Products with weights on CPU, by the faster of the libraries that torch brings.

Shapes: B batch rows, I inputs, O outputs.
"""

import torch

from dlrm_app.model.layers.traced import is_traced

# oneDNN multiplies with weights 5 to 15% faster than MKL, which torch takes for float32 products, but not B rows with
# B rows (docs/experiments.md).
_HAS_ONEDNN = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")

_FEW = 32
"""Inputs: as many as a model has dense features."""


def is_for_onednn(inputs: torch.Tensor) -> bool:
    """Whether ``multiply`` can take them; where not, plain operators do."""
    return _HAS_ONEDNN and not is_traced(inputs) and inputs.device.type == "cpu"


def product_dtype(inputs: torch.Tensor) -> torch.dtype:
    """What is multiplied, as autocast says it."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else inputs.dtype


def multiply(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``inputs`` [B, I] · ``weight`` [O, I] transposed, + ``bias`` [O]; all of one type."""
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")


def weights_gradient(gradient: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """``gradient`` [B, O] transposed · ``inputs`` [B, I]; for few inputs as its transpose, which MKL takes half the time for."""
    if inputs.size(1) < _FEW:
        return inputs.t().mm(gradient).t().contiguous()
    return gradient.t().mm(inputs)
