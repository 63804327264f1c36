"""Several labels of one model: a top MLP for each, over the same tables, bottom MLP and interaction; with experts
between (``dlrm_app.model.experts``) if they are asked for.

A label that is ``given`` another one, such as an order given its click, is predicted as the product
P(click) · P(order | click), and learnt by the likelihood of what a row knows: the click on all rows, the order on those
that were clicked and say whether there was one. The product over all rows, as in the entire-space model of Ma et al.
2018 (arXiv:1804.07931), would count the zeros of rows without a click in full, and of the others only those that say.

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
        joint.append(own if before is None else _product(joint[before], own))
    return torch.stack(joint, dim=1)


def _product(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The logit of the product of the probabilities of two logits."""
    return -torch.stack([-first, -second, -first - second]).logsumexp(0)


def likelihood_terms(
    logits: torch.Tensor, labels: torch.Tensor, given: Sequence[int | None]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [B, L] of each label given its condition, and ``labels`` [L, B] → (logits [L, B], counts [L, B], 1 or 0).

    The cross-entropies of these logits that count add up to the likelihood of the labels that each row has. A label
    counts where its condition is known to hold, and its logit is then its own. Where its condition is not known the
    nearest known one decides, and the logit is that of all that follows from it.
    """
    known = ~labels.isnan()
    terms: list[torch.Tensor] = []
    holds: list[torch.Tensor] = []
    for number, before in enumerate(given):
        own, here = logits[:, number], torch.ones_like(known[0])
        if before is not None:
            here = torch.where(known[before], labels[before] > 0.5, holds[before])
            own = torch.where(known[before], own, _product(terms[before], own))
        terms.append(own)
        holds.append(here)
    return torch.stack(terms), (torch.stack(holds) & known).to(logits.dtype)


def conditional_logits(joint: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Logits [B] of a label and of the one that it is given → logits [B] of the first given the second, float64."""
    share = F.logsigmoid(joint.double()) - F.logsigmoid(given.double())
    share = share.clamp(max=-1e-9)  # the label is as likely as its condition, except for rounding
    return share - torch.log(-torch.expm1(share))


class LabelTops(nn.Module):
    """The top MLPs of several labels, named by their numbers. ``experts`` gives each an input of its own.

    In training the result is the logits of each label given its condition, [B, L], of which the loss is made
    (``ClickLoss``). In evaluation it is the logits of the labels themselves, so that an ensemble averages their
    probabilities.
    """

    def __init__(
        self, tops: Sequence[nn.Module], labels: Sequence[LearntLabel], experts: nn.Module | None = None
    ) -> None:
        super().__init__()
        for number, top in enumerate(tops):
            self.add_module(f"{number}", top)
        self.experts = experts
        self.given = givens(labels)

    @property
    def tops(self) -> list[nn.Module]:
        """The top MLPs, the main label's first."""
        return [getattr(self, f"{number}") for number in range(len(self.given))]

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        if self.experts is None:
            each = [top(*inputs) for top in self.tops]
        else:
            each = [top(mixture) for top, mixture in zip(self.tops, self.experts(*inputs), strict=True)]
        logits = torch.cat(each, dim=1)
        return logits if self.training else joint_logits(logits, self.given)
