"""Computes logits and their binary cross-entropy for a training step, in fp32 or bf16.

Shapes: B batch rows of this rank, N dense features, L labels, S branches, K pieces of a batch.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from dlrm_app.dataset.manifest import LearntLabel
from dlrm_app.distributed.collectives import all_reduce_sum, num_ranks
from dlrm_app.errors import ConfigError, Problem
from dlrm_app.loader.batch import Batch
from dlrm_app.loader.supervision import Supervision
from dlrm_app.model.branches import BRANCH_LOSSES
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

    ``branch_loss``: the name of the loss that the model's branches add. A branch has a logit for every label, and its
    loss is that of a model of its own: the same labels, weights and pieces count.
    """

    def __init__(
        self,
        num_pieces: int = 1,
        labels: Sequence[LearntLabel] = (),
        kept_share: float = 1.0,
        branch_loss: str | None = None,
    ) -> None:
        super().__init__()
        self.kept_share = kept_share
        self._num_pieces = num_pieces
        self.labels, self._given = labels, givens(labels)
        self.branch_loss = None if branch_loss is None else BRANCH_LOSSES[branch_loss]

    def forward(
        self, logits: torch.Tensor, supervision: Supervision, branches: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[B, L], and [B, L, S] of ``branches``, → []. The mean of the ranks' results is that of the global batch, as
        are their gradients.

        ``logits`` are of each label given its condition. A batch whose weights are all 0 has loss 0, without a
        gradient. Outside of training every row counts once, by its main label alone.
        """
        labels = supervision.labels
        if len(logits) != labels.shape[1]:
            rule = f"gives {len(logits) / labels.shape[1]:g} times as many logits in training as there are labels"
            cure = "if these are logits of branches, name a branch_loss where the architecture is registered"
            raise ConfigError(Problem("model.kind", rule, cure))
        if not self.training:
            return F.binary_cross_entropy_with_logits(logits[:, 0], labels[0])
        if branches is not None:
            return self._with_branches(logits, branches, supervision)
        if self.labels:
            losses = self._sum_of_labels(*self._terms(logits, labels), labels, labels[0])
        else:  # the same of one label, in fewer steps
            main = logits.flatten() - math.log(self.kept_share) if self.kept_share < 1 else logits.flatten()
            if not supervision.is_weighted:
                return F.binary_cross_entropy_with_logits(main, labels[0])
            losses = F.binary_cross_entropy_with_logits(main, labels[0], reduction="none")
        return (
            losses.mean() if not supervision.is_weighted else self._means(losses, supervision).mean().float()
        )

    def _means(self, losses: torch.Tensor, supervision: Supervision) -> torch.Tensor:
        """The losses of rows [B] → their mean in each piece [K], by weight if rows have weights."""
        losses = torch.unflatten(losses.double(), 0, (self._num_pieces, -1))
        if not supervision.is_weighted:
            return losses.mean(1)
        parts = torch.unflatten(supervision.weights.double(), 0, (self._num_pieces, -1))
        sums = all_reduce_sum(parts.sum(1))
        shares = torch.where(sums > 0, num_ranks() / sums, 0.0)
        return (losses * parts).sum(1) * shares

    def _with_branches(
        self, logits: torch.Tensor, branches: torch.Tensor, supervision: Supervision
    ) -> torch.Tensor:
        assert self.branch_loss is not None
        labels = supervision.labels
        terms, counts = self._terms(logits, labels)
        score = self._means(self._sum_of_labels(terms, counts, labels, labels[0]), supervision)
        taught = terms.detach().sigmoid() if self.branch_loss.learns_score else labels
        each = []
        for branch in branches.unbind(2):
            own, counts = self._terms(branch, labels)
            each.append(self._means(self._sum_of_labels(own, counts, taught, labels[0]), supervision))
        return self.branch_loss.combine(score, torch.stack(each)).mean().to(logits.dtype)

    def _terms(self, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [B, L] → those whose cross-entropies add up [L, B], and where they count [L, B].

        Sampling drops negatives of the main label, so the main label's logit needs -log(share).
        """
        shifted = torch.cat([logits[:, :1] - math.log(self.kept_share), logits[:, 1:]], dim=1)
        if not self.labels:
            return shifted.t(), torch.ones_like(labels)
        return likelihood_terms(shifted, labels, self._given)

    def _sum_of_labels(
        self, terms: torch.Tensor, counts: torch.Tensor, truths: torch.Tensor, main: torch.Tensor
    ) -> torch.Tensor:
        """The losses [B] of rows, from what ``_terms`` gives. ``truths`` [L, B]: what is learnt; ``main`` [B]: the main
        label.

        Sampling drops negatives of the main label. A label that is given it keeps its odds. For any other one, rows
        that are positive in the main label are too frequent, as all were kept; they count ``kept_share`` times.
        """
        thinned = torch.where(main > 0, self.kept_share, 1.0)
        total = torch.zeros_like(main)
        for number, (label, truth) in enumerate(zip(self.labels or [LearntLabel("")], truths, strict=True)):
            # a label that does not count may hold anything, NaN too: its value must not reach the loss
            truth = torch.where(counts[number] > 0, truth, 0.0)
            losses = F.binary_cross_entropy_with_logits(terms[number], truth, reduction="none")
            weight = label.loss_weight if self._depends_on_main(number) else label.loss_weight * thinned
            total = total + losses * counts[number] * weight
        return total

    def _depends_on_main(self, number: int) -> bool:
        before = self._given[number] if number else None
        return number == 0 if before is None else self._depends_on_main(before)


class ClickTask(nn.Module):
    """Wraps a model so that a batch gives (loss [], StepOutput detached), all float32.

    ``trains_in_bf16``: matrix products of the dense part run in bfloat16 on ``device`` in training steps. Evaluation
    never uses it: logits of 8 bits would tie, and the scores would differ from the exported model's. ``labels``: those
    of the model, if rows have several. ``kept_share``: the share of the negatives that sampling has kept.
    ``branch_loss``: the loss of the model's branches, if it has any (both: ClickLoss).
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        trains_in_bf16: bool = False,
        labels: Sequence[LearntLabel] = (),
        kept_share: float = 1.0,
        branch_loss: str | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self._device = device
        self._trains_in_bf16 = trains_in_bf16
        num_models = len(model.models) if isinstance(model, Ensemble) else 1
        self.loss = ClickLoss(num_models, labels, kept_share, branch_loss)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, StepOutput]:
        """The mean loss over the batch's rows, padding included: only evaluation pads, and it drops the loss.

        Logits are of the true odds.
        """
        is_on = self._trains_in_bf16 and self.training  # tables and their updates keep their own type
        with torch.autocast(self._device.type, torch.bfloat16, enabled=is_on):
            outputs = self.model(batch.dense_features, batch.sparse_features)
        logits, branches, num_labels = outputs.float(), None, len(self.loss.labels) or 1
        if self.training and self.loss.branch_loss is not None:
            by_label = torch.unflatten(logits, 1, (num_labels, -1))  # [B, L, 1 + S]
            logits, branches = by_label[:, :, 0], by_label[:, :, 1:]
        logits = logits.reshape(-1, num_labels)
        loss = self.loss(logits, batch.supervision, branches)
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
