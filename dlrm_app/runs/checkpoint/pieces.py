"""What a rank holds of a run's tensors, and copies of it that are written while training goes on."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex

from dlrm_app.runs.checkpoint.state import Tensors

COUNTABLE = 1 << 30
Pieces = dict[tuple[str, tuple[int, ...]], torch.Tensor]
"""(tensor's name, where the piece begins in it) → values."""


def local_pieces(tensors: Tensors) -> Pieces:
    """Views of what this rank holds."""
    return {(name, offsets): values for name, offsets, values in _iterate(tensors)}


def copy_pieces(tensors: Tensors) -> Pieces:
    """Copies in host memory of what this rank holds: as many bytes as its share of the checkpoint.

    Not in page-locked memory: torch rounds each piece of that up to a power of two, and keeps it for the run's life.
    """
    return {
        (name, offsets): values.detach().to("cpu", copy=True) for name, offsets, values in _iterate(tensors)
    }


def _iterate(tensors: Tensors) -> Iterator[tuple[str, tuple[int, ...], torch.Tensor]]:
    for name, value in tensors.items():
        if isinstance(value, ShardedTensor):
            for shard in value.local_shards():
                yield name, tuple(shard.metadata.shard_offsets), shard.tensor
        else:
            yield name, (0,) * value.dim(), value


def not_finite(pieces: Pieces) -> list[str]:
    """The names of the tensors in which a value is nan or inf."""
    return sorted({name for (name, _), values in pieces.items() if values.numel() and not _is_finite(values)})


def _is_finite(values: torch.Tensor) -> bool:
    # nan passes through aminmax, which is 30 times as fast as isfinite().all(); in parts, whose number of values any kernel
    # can count in 32 bits
    parts = torch.split(values.detach().flatten(), COUNTABLE)
    extremes = [torch.stack(torch.aminmax(part)) for part in parts]
    return bool(torch.isfinite(torch.stack(extremes)).all())


class PiecesPlanner(DefaultSavePlanner):
    """Saves given pieces in place of the tensors' present values; the tensors tell only sizes and places."""

    def __init__(self, pieces: Pieces) -> None:
        super().__init__()
        self._pieces = pieces

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self._pieces[index.fqn, tuple(index.offset or ())]
