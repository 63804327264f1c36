"""The dense part of a model on a few rows at a time, for batches whose activations have no room all at once.

The tables are read once for the whole batch, and one backward pass goes through all pieces: so a step adds up the same
gradients as without, whatever optimizer and kernel, which adding them up over several backward passes would not where
tables are updated inside each. Shapes: B batch rows of this rank, N dense features.
"""

import copy

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class MicroBatches(nn.Module):
    """The dense part of ``model`` in ``count`` pieces; keeps the inputs of each, and computes it again in the backward
    pass (Chen et al. 2016, arXiv:1604.06174).

    A module, so that the pipelines, which trace the model, take it as a whole; its parameters stay those of ``model``.
    """

    def __init__(self, model: nn.Module, count: int) -> None:
        super().__init__()
        dense_part = copy.copy(model)
        dense_part._modules = {**model._modules, "sparse_arch": nn.Identity()}  # it is handed its embeddings
        self._dense_part = [dense_part]  # in a list, where torch does not look for parameters
        self._count = count

    def forward(self, dense_features: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """([B, N], the sparse_arch's result [B, …]) → logits [B, 1]."""
        (dense_part,) = self._dense_part
        pieces = zip(dense_features.chunk(self._count), embedded.chunk(self._count), strict=True)
        return torch.cat([checkpoint(dense_part, *piece, use_reentrant=False) for piece in pieces])
