"""Computes logits and their binary cross-entropy for a training step, in fp32 or bf16.

Shapes: B batch rows of this rank, N dense features.
"""

import torch
from torch import nn

from dlrm_app.loader.batch import Batch

BF16_UNITS = ("avx512_bf16", "amx_bf16", "bf16")
"""torch's names of CPU features that multiply bfloat16: two of x86, one of Arm."""
StepOutput = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class ClickTask(nn.Module):
    """Wraps a model so that a batch gives (loss [], (loss, logits [B], labels [B]) detached), all float32.

    ``trains_in_bf16``: matrix products of the dense part run in bfloat16 on ``device`` in training steps. Evaluation
    never uses it: logits of 8 bits would tie, and the scores would differ from the exported model's.
    """

    def __init__(self, model: nn.Module, device: torch.device, trains_in_bf16: bool = False) -> None:
        super().__init__()
        self.model = model
        self._device = device
        self._trains_in_bf16 = trains_in_bf16
        self.loss = nn.BCEWithLogitsLoss()

    def forward(self, batch: Batch) -> tuple[torch.Tensor, StepOutput]:
        """The mean loss over the batch's rows, padding included: only evaluation pads, and it drops the loss."""
        is_on = self._trains_in_bf16 and self.training  # tables and their updates keep their own type
        with torch.autocast(self._device.type, torch.bfloat16, enabled=is_on):
            logits = self.model(batch.dense_features, batch.sparse_features)
        logits = logits.float().squeeze(-1)
        loss = self.loss(logits, batch.labels)
        return loss, (loss.detach(), logits.detach(), batch.labels.detach())


def multiplies_bf16(device: torch.device) -> bool:
    """True if ``device`` multiplies bfloat16 in hardware; emulation is many times slower."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(unit) for unit in BF16_UNITS)


def set_tf32(wanted: bool, device: torch.device) -> None:
    """Sets whether CUDA's fp32 matrix products round their factors to TF32; has no effect on a CPU."""
    torch.backends.cuda.matmul.allow_tf32 = wanted and device.type == "cuda"
