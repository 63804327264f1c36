"""Computes logits and their binary cross-entropy for a training step, in fp32 or bf16.

Shapes: B batch rows of this rank, N dense features.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from dlrm_app.distributed.collectives import all_reduce_sum, num_ranks
from dlrm_app.loader.batch import Batch
from dlrm_app.model.ensemble import Ensemble

BF16_UNITS = ("avx512_bf16", "amx_bf16", "bf16")
"""torch's names of CPU features that multiply bfloat16: two of x86, one of Arm."""
StepOutput = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]
"""(loss [], logits [B], labels [B], weights [B] if rows have any)."""


class ClickLoss(nn.Module):
    """The mean cross-entropy of a batch; with weights w of its rows and losses l, Σwl / Σw over the rows of all ranks.

    ``num_pieces``: each of so many equal pieces of a batch is a batch of its own (the models of an ensemble); the
    result is their mean. ``kept_share``: the share of the negatives that sampling has kept in the training rows. Among
    these the odds of a click are 1 / share times the true ones, so training adds -log(share) to every logit, and
    logits are of the true odds (He et al. 2014, "Practical lessons from predicting clicks on ads at Facebook",
    section 6.3, correct predictions afterwards instead).
    """

    def __init__(self, num_pieces: int = 1) -> None:
        super().__init__()
        self.kept_share = 1.0
        self._num_pieces = num_pieces

    def forward(
        self, logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[B], [B], [B] → []. The mean of the ranks' results is that of the global batch, as are their gradients.

        A batch whose weights are all 0 has loss 0, without a gradient. Outside of training every row counts once.
        """
        if not self.training:
            return F.binary_cross_entropy_with_logits(logits, labels)
        if self.kept_share < 1:
            logits = logits - math.log(self.kept_share)
        if weights is None:
            return F.binary_cross_entropy_with_logits(logits, labels)
        losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="none").double()
        losses, parts = (
            torch.unflatten(each, 0, (self._num_pieces, -1)) for each in (losses, weights.double())
        )
        sums = all_reduce_sum(parts.sum(1))
        shares = torch.where(sums > 0, num_ranks() / sums, 0.0)
        return ((losses * parts).sum(1) * shares).mean().float()


def learn_from_kept(model: nn.Module, share: float) -> None:
    """Tells the loss of ``model`` that sampling has kept this ``share`` of the negatives in the training rows."""
    for module in model.modules():
        if isinstance(module, ClickLoss):
            module.kept_share = share


class ClickTask(nn.Module):
    """Wraps a model so that a batch gives (loss [], (loss, logits [B], labels [B], weights) detached), all float32.

    ``trains_in_bf16``: matrix products of the dense part run in bfloat16 on ``device`` in training steps. Evaluation
    never uses it: logits of 8 bits would tie, and the scores would differ from the exported model's.
    """

    def __init__(self, model: nn.Module, device: torch.device, trains_in_bf16: bool = False) -> None:
        super().__init__()
        self.model = model
        self._device = device
        self._trains_in_bf16 = trains_in_bf16
        self.loss = ClickLoss(len(model.models) if isinstance(model, Ensemble) else 1)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, StepOutput]:
        """The mean loss over the batch's rows, padding included: only evaluation pads, and it drops the loss.

        Logits are of the true odds.
        """
        is_on = self._trains_in_bf16 and self.training  # tables and their updates keep their own type
        with torch.autocast(self._device.type, torch.bfloat16, enabled=is_on):
            logits = self.model(batch.dense_features, batch.sparse_features)
        logits = logits.float().squeeze(-1)
        loss = self.loss(logits, batch.labels, batch.weights)
        return loss, (loss.detach(), logits.detach(), batch.labels.detach(), batch.weights)


def multiplies_bf16(device: torch.device) -> bool:
    """True if ``device`` multiplies bfloat16 in hardware; emulation is many times slower."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(unit) for unit in BF16_UNITS)


def set_tf32(wanted: bool, device: torch.device) -> None:
    """Sets whether CUDA's fp32 matrix products round their factors to TF32; has no effect on a CPU."""
    torch.backends.cuda.matmul.allow_tf32 = wanted and device.type == "cuda"
