"""Number formats of the dense part: bf16, TF32."""

import logging
import time
from contextlib import AbstractContextManager

import torch

logger = logging.getLogger(__name__)

BF16_UNITS = ("avx512_bf16", "amx_bf16", "bf16")
"""torch's names of what a CPU multiplies bfloat16 by: of x86, and of Arm."""
FORMATS = ("fp32", "TF32", "bf16")
PEAKS = {(8, 0): (19.5, 156.0, 312.0), (9, 0): (66.9, 494.7, 989.4)}
"""Compute capability → TFLOP/s of FORMATS, dense, by the datasheets of the A100 and the H100 SXM."""
SETTINGS = {"fp32": "trainer.tf32=false", "TF32": "trainer.tf32=true", "bf16": "trainer.precision=bf16"}


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


def describe_choice(precision: str, is_tf32: bool, capability: tuple[int, int]) -> str:
    """The format of the dense part's products on such a GPU, and what each other one would do to their speed."""
    chosen = "bf16" if precision == "bf16" else "TF32" if is_tf32 else "fp32"
    others = [name for name in FORMATS if name != chosen]
    peaks = dict(zip(FORMATS, PEAKS.get(capability, ()), strict=False))
    if not peaks:
        settings = " or ".join(SETTINGS[name] for name in others)
        return f"the dense part multiplies in {chosen}; {settings} would choose another format"
    costs = [f"{SETTINGS[name]} {_compare(peaks[name] / peaks[chosen])}" for name in others]
    return f"the dense part multiplies in {chosen}: {' and '.join(costs)}, by the datasheet"


def _compare(ratio: float) -> str:
    return f"allows {ratio:.1f}× as fast products" if ratio >= 1 else f"{1 / ratio:.1f}× slower ones"
