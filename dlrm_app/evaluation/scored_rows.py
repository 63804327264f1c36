"""Rows with their scores, labels and weights: what every metric is computed from."""

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
