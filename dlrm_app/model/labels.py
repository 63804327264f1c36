"""Several labels of one model: a top MLP for each, over the same tables, bottom MLP and interaction.

A label that is ``given`` another one, such as an order given its click, is learnt on all shown rows as the product
P(click) · P(order | click): the entire-space model of Ma et al. 2018 (arXiv:1804.07931).

Shapes: B batch rows, L labels.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from dlrm_app.dataset.manifest import LearntLabel


def givens(labels: Sequence[LearntLabel]) -> tuple[int | None, ...]:
    """The number of the earlier label that each label is given; None for one that stands alone."""
    names = [label.name for label in labels]
    return tuple(None if label.given is None else names.index(label.given) for label in labels)


def joint_logits(logits: torch.Tensor, given: Sequence[int | None]) -> torch.Tensor:
    """Logits [B, L] of each label given its condition → logits [B, L] of the label itself.

    With p = P(a) · P(b | a), (1 - p) / p = (1 + e^-a) (1 + e^-b) - 1, so the logit of p is
    -log(e^-a + e^-b + e^-(a + b)): exact also where probabilities are near 0 or 1.
    """
    joint: list[torch.Tensor] = []
    for number, before in enumerate(given):
        own = logits[:, number]
        if before is not None:
            both = joint[before]
            own = -torch.stack([-both, -own, -both - own]).logsumexp(0)
        joint.append(own)
    return torch.stack(joint, dim=1)


def conditional_logits(joint: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Logits [B] of a label and of the one that it is given → logits [B] of the first given the second, float64."""
    share = F.logsigmoid(joint.double()) - F.logsigmoid(given.double())
    share = share.clamp(max=-1e-9)  # the label is as likely as its condition, but for rounding
    return share - torch.log(-torch.expm1(share))


class LabelTops(nn.ModuleList):
    """The top MLPs of several labels, in their order.

    In training the result is the logits of each label given its condition, [B, L], of which the loss is made
    (``ClickLoss``). In evaluation it is the logits of the labels themselves, so that an ensemble averages their
    probabilities.
    """

    def __init__(self, tops: Sequence[nn.Module], labels: Sequence[LearntLabel]) -> None:
        super().__init__(tops)
        self.given = givens(labels)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        logits = torch.cat([top(*inputs) for top in self], dim=1)
        return logits if self.training else joint_logits(logits, self.given)
