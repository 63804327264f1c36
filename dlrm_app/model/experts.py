"""Experts before the top MLPs of several labels: MLPs over the interaction, of which each label reads a mixture.

``mmoe``: all labels read the same experts, each through a gate of its own (Ma et al. 2018, "Modeling task relationships
in multi-task learning with multi-gate mixture-of-experts", KDD, doi:10.1145/3219819.3220007). ``ple``: a label has
experts of its own beside the shared ones, in one level or several (Tang et al. 2020, "Progressive layered
extraction", RecSys, doi:10.1145/3383313.3412236). The first is the second with one level and no own experts.

Shapes: B batch rows, W the interaction's width, K an expert's width, L labels.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torchrec.models.dlrm import OverArch
from torchrec.modules.mlp import MLP

from dlrm_app.config.train import ModelConfig


class ExpertLevel(nn.Module):
    """One level: an input for each label and one for the shared experts → the mixtures of each, [B, K].

    Experts are in the order: the shared ones, those of the first label, and so on. A label's gate weighs the shared
    ones and its own by the softmax of a linear layer; the gate of the shared input, which the last level lacks,
    weighs all.
    """

    def __init__(
        self, width: int, mlp: Sequence[int], num_shared: int, num_own: int, num_labels: int, is_last: bool
    ) -> None:
        super().__init__()
        count = num_shared + num_labels * num_own
        self.experts = nn.ModuleList(MLP(width, list(mlp)) for _ in range(count))
        sizes = [num_shared + num_own] * num_labels + ([] if is_last else [count])
        self.gates = nn.ModuleList(nn.Linear(width, size, bias=False) for size in sizes)
        self._num_shared, self._num_own = num_shared, num_own

    def forward(self, labels: Sequence[torch.Tensor], shared: torch.Tensor) -> list[torch.Tensor]:
        """Inputs [B, W] of the L labels and of the shared experts → mixtures, the shared one last if there is one."""
        of_label = [number for number in range(len(labels)) for _ in range(self._num_own)]
        inputs = [*(shared for _ in range(self._num_shared)), *(labels[number] for number in of_label)]
        outputs = [expert(each) for expert, each in zip(self.experts, inputs, strict=True)]
        seen = [self._seen_by(number, outputs) for number in range(len(labels))]
        seen += [outputs] * (len(self.gates) - len(labels))
        selectors = [*labels, shared]  # the last level has no gate for the last of these
        return [
            (gate(selector).softmax(1).unsqueeze(1) @ torch.stack(each, dim=1)).squeeze(1)
            for gate, selector, each in zip(self.gates, selectors, seen, strict=False)
        ]

    def _seen_by(self, label: int, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        first = self._num_shared + label * self._num_own
        return [*outputs[: self._num_shared], *outputs[first : first + self._num_own]]


class Experts(nn.Module):
    """[B, W] → the mixture [B, K] of each of L labels."""

    def __init__(self, width: int, config: ModelConfig, num_labels: int) -> None:
        super().__init__()
        settings, is_ple = config.experts, config.tasks == "ple"
        num_levels, num_own = (settings.levels or 1, settings.own or 1) if is_ple else (1, 0)
        self.width = settings.mlp[-1]
        widths = [width, *[self.width] * (num_levels - 1)]
        self.levels = nn.ModuleList(
            ExpertLevel(
                each, settings.mlp, settings.shared, num_own, num_labels, is_last=level == num_levels - 1
            )
            for level, each in enumerate(widths)
        )
        self._num_labels = num_labels

    def forward(self, crossed: torch.Tensor) -> list[torch.Tensor]:
        mixtures = [crossed] * (self._num_labels + 1)
        for level in self.levels:
            mixtures = level(mixtures[: self._num_labels], mixtures[-1])
        return mixtures


def experts_and_tops(
    top: nn.Module, config: ModelConfig, widths: Sequence[int], num_labels: int
) -> tuple[Experts, list[nn.Module]]:
    """Makes experts that read what the top MLP ``top`` of one label reads, and the top MLPs that read their mixtures."""
    first = next(each for each in top.modules() if isinstance(each, nn.Linear))
    experts = Experts(first.in_features, config, num_labels)
    return experts, [OverArch(experts.width, list(widths)) for _ in range(num_labels)]
