"""Products with weights on CPU, by the faster of the libraries that torch brings.

Shapes: B batch rows, I inputs, O outputs.
"""

from functools import cache

import torch

from dlrm_app.kernels.traced import is_traced

# oneDNN multiplies with weights 5 to 15% faster than MKL, which torch takes for float32 products, but B rows with B rows
# only where MKL leaves wide units idle (docs/experiments/index.md).
_HAS_ONEDNN = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")

_FEW = 32
"""Inputs: as many as a model has dense features."""


@cache
def _leaves_units_idle() -> bool:
    """Whether MKL does half of what the CPU can: it has AVX-512 products for Intel's alone, and AMD's are wide since Zen 5.

    Zen 5 is the first of them that has both AVX-512 and AVX-VNNI.
    """
    capabilities = torch.cpu.get_capabilities()
    is_amd = "AMD" in str(capabilities.get("cpu_name"))
    return is_amd and bool(capabilities.get("avx512_f")) and bool(capabilities.get("avx_vnni"))


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
    """``gradient`` [B, O] transposed · ``inputs`` [B, I]; for few inputs as its transpose, which takes half the time."""
    if inputs.size(1) < _FEW:
        return _multiply_rows(inputs, gradient).t().contiguous()
    return _multiply_rows(gradient, inputs)


def _multiply_rows(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """``left`` [B, I] transposed · ``right`` [B, O]. In bfloat16 torch's own are oneDNN's, which sums no empty batch."""
    if left.dtype == torch.float32 and len(left) and _leaves_units_idle():
        return multiply(left.t(), right.t())
    return left.t().mm(right)
