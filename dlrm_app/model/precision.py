"""Number formats: what a device can train its tables in, bf16 for the dense part, TF32."""

import logging
from contextlib import AbstractContextManager

import torch

from dlrm_app.tables.specs import Table

logger = logging.getLogger(__name__)


def dense_autocast(device: torch.device, is_on: bool) -> AbstractContextManager[None]:
    """Where the dense part's products run in bfloat16, if ``is_on``; tables and their updates are not touched."""
    return torch.autocast(device.type, torch.bfloat16, enabled=is_on)


def set_tf32(is_on: bool, device: torch.device) -> None:
    """Lets CUDA's fp32 matrix products round their factors to TF32, or not."""
    torch.backends.cuda.matmul.allow_tf32 = is_on
    if is_on and device.type != "cuda":
        logger.warning("trainer.tf32=true has no effect on %s: TF32 is a format of NVIDIA GPUs", device.type)


def table_type_problems(
    table: Table, is_fused: bool, wants_rounding: bool, device: torch.device
) -> list[str]:
    """Why ``table`` cannot be trained in its data_type. ``wants_rounding``: stochastic_rounding is asked for."""
    if table.data_type == "bf16":
        return ["fbgemm 1.8 trains no bf16 tables, on CPU or CUDA: use data_type fp16 or fp32"]
    if table.data_type == "fp32":
        return []
    if not is_fused:
        return [
            "fp16 weights need an optimizer inside the backward pass, for beside it gradients and their squares "
            "would be fp16 too: use data_type fp32, or see docs/optimizers.md for what is fused"
        ]
    if wants_rounding and device.type == "cpu":
        return [
            "stochastic rounding exists on CUDA only, fbgemm rounds to the nearest fp16 value on CPU: "
            "set stochastic_rounding=null, or use data_type fp32"
        ]
    return []
