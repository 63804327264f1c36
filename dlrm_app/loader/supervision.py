"""The labels and weights of a batch's rows, which loss and metrics read, and models do not.

Shapes: B batch rows, L labels.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch

Chosen = slice | torch.Tensor
"""Rows of a batch: a slice, or a mask [B]."""


@lru_cache(maxsize=16)
def unit_weights(size: int, device: torch.device) -> torch.Tensor:
    """Ones, float32 [size]. Made once for each device and shared by all batches there."""
    return torch.ones(size).to(device)


@dataclass(frozen=True, eq=False)
class Supervision:
    """``labels`` [L, B] float32, the main one first, NaN where a row lacks another one; ``weights`` [B] float32.

    ``is_weighted``: False if all rows count once. Their weights are then the shared ``unit_weights``, which loss and
    metrics need not read.
    """

    labels: torch.Tensor
    weights: torch.Tensor
    is_weighted: bool = True

    @classmethod
    def unweighted(cls, labels: torch.Tensor) -> "Supervision":
        """Rows that all count once."""
        return cls(labels, unit_weights(labels.shape[1], labels.device), is_weighted=False)

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, rows: Chosen) -> "Supervision":
        """The labels and weights of some of the rows."""
        return Supervision(self.labels[:, rows], self.weights[rows], self.is_weighted)

    def to(self, device: torch.device, non_blocking: bool = False) -> "Supervision":
        """A copy on ``device``; tensors that are there already are not copied."""
        labels = self.labels.to(device, non_blocking=non_blocking)
        if not self.is_weighted:
            return Supervision.unweighted(labels)
        return Supervision(labels, self.weights.to(device, non_blocking=non_blocking))

    def record_stream(self, stream: torch.Stream) -> None:
        """Records for the allocator that ``stream`` uses the tensors."""
        self.labels.record_stream(stream)
        self.weights.record_stream(stream)
