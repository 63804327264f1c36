"""Number formats of the dense part: bf16, TF32."""

import logging
from contextlib import AbstractContextManager

import torch

logger = logging.getLogger(__name__)


def dense_autocast(device: torch.device, is_on: bool) -> AbstractContextManager[None]:
    """Where the dense part's products run in bfloat16, if ``is_on``; tables and their updates are not touched."""
    return torch.autocast(device.type, torch.bfloat16, enabled=is_on)


def set_tf32(is_on: bool, device: torch.device) -> None:
    """Lets CUDA's fp32 matrix products round their factors to TF32, or not."""
    torch.backends.cuda.matmul.allow_tf32 = is_on
    if is_on and device.type != "cuda":
        logger.warning("trainer.tf32=true has no effect on %s: TF32 is a format of NVIDIA GPUs", device.type)
