"""Rows with their scores, labels and weights: what every metric is computed from."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dlrm_app.loader.supervision import Chosen, Supervision


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """``logits`` [n] float32, ``labels`` [n] bool, and ``weights`` [n] float32, by which the rows count.

    ``is_weighted``: False if all rows count once. Their weights take no memory then, and metrics that need none are
    exact sums of integers.
    """

    logits: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    is_weighted: bool = True

    @classmethod
    def unweighted(cls, logits: torch.Tensor, labels: torch.Tensor) -> "ScoredRows":
        """Rows that all count once."""
        return cls(logits, labels, logits.new_ones(()).expand(len(logits)), is_weighted=False)

    @classmethod
    def of_label(cls, logits: torch.Tensor, labels: torch.Tensor, supervision: Supervision) -> "ScoredRows":
        """Rows with the ``logits`` [n] and ``labels`` [n] of one label, and the weights of ``supervision``."""
        return cls(logits, labels > 0.5, supervision.weights, supervision.is_weighted)

    @classmethod
    def joined(cls, parts: "Sequence[ScoredRows]") -> "ScoredRows":
        """All rows of ``parts``, at least one, of which all have weights or none has."""
        logits, labels = (
            torch.cat(each) for each in zip(*((p.logits, p.labels) for p in parts), strict=True)
        )
        if not parts[0].is_weighted:
            return cls.unweighted(logits, labels)
        return cls(logits, labels, torch.cat([part.weights for part in parts]))

    def detached(self) -> "ScoredRows":
        """A copy: a view would keep its whole batch alive, and a compiled model reuses its output's memory."""
        logits, labels = self.logits.detach().to(torch.float32, copy=True), self.labels.clone()
        if not self.is_weighted:
            return ScoredRows.unweighted(logits, labels)
        return ScoredRows(logits, labels, self.weights.to(torch.float32, copy=True))

    def counted(self, times: torch.Tensor) -> "ScoredRows":
        """These rows, each of which counts ``times`` [n] as often."""
        return ScoredRows(self.logits, self.labels, self.weights * times)

    def __len__(self) -> int:
        return len(self.logits)

    def __getitem__(self, chosen: Chosen) -> "ScoredRows":
        """Some of the rows."""
        if not self.is_weighted:
            return ScoredRows.unweighted(self.logits[chosen], self.labels[chosen])
        return ScoredRows(self.logits[chosen], self.labels[chosen], self.weights[chosen])
