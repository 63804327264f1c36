"""Forward passes over a split: while one is computed, the next batch is copied to the device and its ids are exchanged."""

from collections.abc import Generator, Iterator, Sized
from typing import Protocol, cast

import torch
from torch import nn
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist

from dlrm_app.loader.batch import Batch

Scored = tuple[Batch, torch.Tensor]
"""A batch on the device, and its logits [B]."""


class SizedBatches(Sized, Protocol):
    """Batches whose number is known beforehand, the same on every rank."""

    def __iter__(self) -> Iterator[Batch]: ...


def forward_passes(
    model: nn.Module, batches: SizedBatches, device: torch.device
) -> Generator[Scored, None, None]:
    """Every batch with its logits by ``model``, a sharded ClickTask in evaluation mode that no pipeline is attached to.

    Close it (``contextlib.closing``): then the model's forward is its own again.
    """

    def score(batch: Batch | None) -> tuple[torch.Tensor, Scored]:
        assert batch is not None
        loss, (_, logits, _) = model(batch)
        return loss, (batch, logits)

    # torchrec's steps only in training mode, so that it needs no optimizer here
    no_optimizer = cast(torch.optim.Optimizer, None)
    pipeline = TrainPipelineSparseDist(model, no_optimizer, device, custom_model_fwd=score)
    stream = iter(batches)
    try:
        for _ in range(len(batches)):
            yield pipeline.progress(stream)
    finally:
        pipeline.detach()
