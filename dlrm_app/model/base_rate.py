"""The bias of the last layer, so that a model begins by predicting the share of positives and need not learn it."""

import math

import torch
from torch import nn


@torch.no_grad()
def set_base_rate(model: nn.Module, rate: float) -> None:
    """Sets the last bias of every ``over_arch`` in ``model`` to the logit of ``rate``, in (0, 1).

    The initial bias of focal loss (Lin et al. 2017, arXiv:1708.02002, section 4.1): where positives are rare, the first
    steps would only lower all logits, and those of one epoch may not end with it.
    """
    for name, module in model.named_modules():
        if name.rpartition(".")[2] == "over_arch":
            last = [layer for layer in module.modules() if isinstance(layer, nn.Linear)][-1]
            last.bias.fill_(math.log(rate / (1 - rate)))
