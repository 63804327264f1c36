"""Branches: parts of a model with logits of their own, which training teaches beside the score.

In training such a model returns the score's logit and then those of its S branches, [B, 1 + S], and its architecture
names a loss of ``BRANCH_LOSSES``. In evaluation it returns the score alone, so exports and scoring know no branches.

Shapes: B batch rows, S branches, K equal pieces of a batch, one for each model of an ensemble.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd.function import FunctionCtx

from dlrm_app.distributed.collectives import all_reduce_sum, num_ranks


class BranchHeads(nn.Module):
    """The last layer of each branch. The score is the mean of the branches' logits."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, 1) for width in widths)

    def forward(self, branches: Sequence[torch.Tensor]) -> torch.Tensor:
        """Branch s [B, …, width s] → logits [B, 1 + S] in training, [B, 1] in evaluation.

        The logit of a branch with several vectors in a row is their mean.
        """
        pairs = zip(self.layers, branches, strict=True)
        logits = torch.cat([layer(branch).flatten(1).mean(1, keepdim=True) for layer, branch in pairs], dim=1)
        score = logits.mean(1, keepdim=True)
        return torch.cat([score, logits], dim=1) if self.training else score


@dataclass(frozen=True)
class BranchLoss:
    """How training teaches branches.

    learns_score: a branch learns the score's probability, which gets no gradient from it; otherwise the label.
    combine: the score's mean loss [K] and the branches' [S, K], each the cross-entropy → the loss to minimise [K].
    """

    learns_score: bool
    combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def add_all(score: torch.Tensor, branches: torch.Tensor) -> torch.Tensor:
    """The sum of all losses."""
    return score + branches.sum(0)


def add_worse(score: torch.Tensor, branches: torch.Tensor) -> torch.Tensor:
    """The score's loss, and each branch's times what it is worse than the score's.

    Tri-BCE, Li et al. 2024, arXiv:2407.13349. As in their code the factor has a gradient too. It is a product of
    means over the batch, so the means are those of all ranks: the loss does not depend on their number.
    """
    score, branches = mean_over_ranks(score), mean_over_ranks(branches)
    return score + (branches * (branches - score).relu()).sum(0)


BRANCH_LOSSES = {
    "self_distillation": BranchLoss(learns_score=True, combine=add_all),
    "tri_bce": BranchLoss(learns_score=False, combine=add_worse),
}
"""Name → loss. Self-distillation: Zhu et al. 2023, "FINAL: Factorized Interaction Layer for CTR Prediction"."""


def mean_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """The mean of all ranks' ``values``. Every rank must call it.

    DistributedDataParallel divides gradients by the number of ranks, so the gradient passes as it is.
    """
    if num_ranks() == 1:
        return values
    mean: torch.Tensor = _MeanOverRanks.apply(values)  # type: ignore[no-untyped-call]
    return mean


class _MeanOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, values: torch.Tensor) -> torch.Tensor:
        return all_reduce_sum(values) / num_ranks()

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: torch.Tensor) -> torch.Tensor:
        return gradient
