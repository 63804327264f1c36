"""Computes logits and their binary cross-entropy for a training step, in fp32 or bf16.

Shapes: B batch rows of this rank, N dense features, L labels.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from dlrm_app.dataset.manifest import LearntLabel
from dlrm_app.distributed.collectives import all_reduce_sum, num_ranks
from dlrm_app.loader.batch import Batch
from dlrm_app.loader.supervision import Supervision
from dlrm_app.model.ensemble import Ensemble
from dlrm_app.model.labels import givens, likelihood_terms

BF16_UNITS = ("avx512_bf16", "amx_bf16", "bf16")
"""torch's names of CPU features that multiply bfloat16: two of x86, one of Arm."""


class StepOutput(NamedTuple):
    """The loss [], the logits [B, L] and the supervision of a batch.

    In training ``logits`` are of each label given its condition, in evaluation of the label itself.
    """

    loss: torch.Tensor
    logits: torch.Tensor
    supervision: Supervision


class ClickLoss(nn.Module):
    """The mean cross-entropy of a batch; with weights w of its rows and losses l, Σwl / Σw over the rows of all ranks.

    ``num_pieces``: the number of equal pieces that the batch consists of, one for each model of an ensemble. The loss
    is computed for each piece; the result is the mean.

    ``kept_share``: the share of the training rows' negatives that sampling has kept. Among the rows that are left, the
    odds of a click are 1 / share times the true odds. Training therefore adds -log(share) to every logit, so that the
    logits themselves are those of the true odds. (He et al. 2014, "Practical lessons from predicting clicks on ads at
    Facebook", section 6.3, train without this and correct the predictions afterwards.)

    With several ``labels``, the loss l of a row is the sum of its labels' losses, each times its ``loss_weight``. A
    label that a row lacks adds nothing, nor does one whose condition does not hold (``likelihood_terms``). A label
    counts the same in every row that has it, whatever the other rows of the batch are.
    """

    def __init__(
        self, num_pieces: int = 1, labels: Sequence[LearntLabel] = (), kept_share: float = 1.0
    ) -> None:
        super().__init__()
        self.kept_share = kept_share
        self._num_pieces = num_pieces
        self.labels, self._given = labels, givens(labels)

    def forward(self, logits: torch.Tensor, supervision: Supervision) -> torch.Tensor:
        """[B, L] → []. The mean of the ranks' results is that of the global batch, as are their gradients.

        ``logits`` are of each label given its condition. A batch whose weights are all 0 has loss 0, without a
        gradient. Outside of training every row counts once, by its main label alone.
        """
        labels = supervision.labels
        if not self.training:
            return F.binary_cross_entropy_with_logits(logits[:, 0], labels[0])
        if self.labels:
            losses = self._sum_of_labels(logits, labels)
        else:  # the same of one label, in fewer steps
            main = logits.flatten() - math.log(self.kept_share) if self.kept_share < 1 else logits.flatten()
            if not supervision.is_weighted:
                return F.binary_cross_entropy_with_logits(main, labels[0])
            losses = F.binary_cross_entropy_with_logits(main, labels[0], reduction="none")
        if not supervision.is_weighted:
            return losses.mean()
        losses, parts = (
            torch.unflatten(each, 0, (self._num_pieces, -1))
            for each in (losses.double(), supervision.weights.double())
        )
        sums = all_reduce_sum(parts.sum(1))
        shares = torch.where(sums > 0, num_ranks() / sums, 0.0)
        return ((losses * parts).sum(1) * shares).mean().float()

    def _sum_of_labels(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The losses [B] of rows with several labels.

        Sampling drops negatives of the main label, so the main label's logit needs -log(share). It does not change the
        odds of a label that is given the main one. For any other label, rows that are positive in the main label are
        too frequent, because all of them were kept; they count ``kept_share`` times.
        """
        shifted = torch.cat([logits[:, :1] - math.log(self.kept_share), logits[:, 1:]], dim=1)
        terms, counts = likelihood_terms(shifted, labels, self._given)
        thinned = torch.where(labels[0] > 0, self.kept_share, 1.0)
        total = torch.zeros_like(labels[0])
        for number, (label, truth) in enumerate(zip(self.labels, labels, strict=True)):
            # a label that does not count may hold anything, NaN too: its value must not reach the loss
            truth = torch.where(counts[number] > 0, truth, 0.0)
            losses = F.binary_cross_entropy_with_logits(terms[number], truth, reduction="none")
            weight = label.loss_weight if self._depends_on_main(number) else label.loss_weight * thinned
            total = total + losses * counts[number] * weight
        return total

    def _depends_on_main(self, number: int) -> bool:
        before = self._given[number]
        return number == 0 if before is None else self._depends_on_main(before)


class ClickTask(nn.Module):
    """Wraps a model so that a batch gives (loss [], StepOutput detached), all float32.

    ``trains_in_bf16``: matrix products of the dense part run in bfloat16 on ``device`` in training steps. Evaluation
    never uses it: logits of 8 bits would tie, and the scores would differ from the exported model's. ``labels``: those
    of the model, if rows have several. ``kept_share``: the share of the negatives that sampling has kept (ClickLoss).
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        trains_in_bf16: bool = False,
        labels: Sequence[LearntLabel] = (),
        kept_share: float = 1.0,
    ) -> None:
        super().__init__()
        self.model = model
        self._device = device
        self._trains_in_bf16 = trains_in_bf16
        num_models = len(model.models) if isinstance(model, Ensemble) else 1
        self.loss = ClickLoss(num_models, labels, kept_share)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, StepOutput]:
        """The mean loss over the batch's rows, padding included: only evaluation pads, and it drops the loss.

        Logits are of the true odds.
        """
        is_on = self._trains_in_bf16 and self.training  # tables and their updates keep their own type
        with torch.autocast(self._device.type, torch.bfloat16, enabled=is_on):
            logits = self.model(batch.dense_features, batch.sparse_features)
        logits = logits.float().reshape(-1, len(self.loss.labels) or 1)
        loss = self.loss(logits, batch.supervision)
        return loss, StepOutput(loss.detach(), logits.detach(), batch.supervision)


def multiplies_bf16(device: torch.device) -> bool:
    """True if ``device`` multiplies bfloat16 in hardware; emulation is many times slower."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(unit) for unit in BF16_UNITS)


def set_tf32(wanted: bool, device: torch.device) -> None:
    """Sets whether CUDA's fp32 matrix products round their factors to TF32; has no effect on a CPU."""
    torch.backends.cuda.matmul.allow_tf32 = wanted and device.type == "cuda"
