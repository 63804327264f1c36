"""Number formats of the dense part: bf16, TF32."""

import logging
import time
from contextlib import AbstractContextManager

import torch

logger = logging.getLogger(__name__)

BF16_UNITS = ("avx512_bf16", "amx_bf16", "bf16")
"""torch's names of what a CPU multiplies bfloat16 by: of x86, and of Arm."""


def dense_autocast(device: torch.device, is_on: bool) -> AbstractContextManager[None]:
    """Where the dense part's products run in bfloat16, if ``is_on``; tables and their updates are not touched."""
    return torch.autocast(device.type, torch.bfloat16, enabled=is_on)


def multiplies_bf16(device: torch.device) -> bool:
    """Whether ``device`` has units for products in bfloat16; without them they are emulated, many times slower."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(unit) for unit in BF16_UNITS)


def bf16_slowdown(device: torch.device) -> float:
    """How many times as long a product in bfloat16 takes as in float32: the best of four, 256 × 512 × 512."""
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        left, right = (torch.ones(*shape, dtype=dtype, device=device) for shape in ((256, 512), (512, 512)))
        seconds[dtype] = min(_seconds(left, right) for _ in range(4))
    return seconds[torch.bfloat16] / seconds[torch.float32]


def _seconds(left: torch.Tensor, right: torch.Tensor) -> float:
    start = time.perf_counter()
    (left @ right).sum().item()  # waits for a GPU
    return time.perf_counter() - start


def set_tf32(is_on: bool, device: torch.device) -> None:
    """Lets CUDA's fp32 matrix products round their factors to TF32, or not."""
    torch.backends.cuda.matmul.allow_tf32 = is_on
    if is_on and device.type != "cuda":
        logger.warning("trainer.tf32=true has no effect on %s: TF32 is a format of NVIDIA GPUs", device.type)
