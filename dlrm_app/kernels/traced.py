"""Whether a module is being read rather than run: by torch.fx, torch.jit, torch.export or torch.compile."""

import torch


def is_traced(*inputs: object) -> bool:
    """Whether ``inputs`` stand for tensors; then plain operators are what a reader understands."""
    is_read = torch.compiler.is_compiling() or torch._C._is_tracing()
    return is_read or not all(type(value) is torch.Tensor for value in inputs)
