"""torchrec's train pipelines by name: how much of the next batches' work is prefetched during a step.

Each has ``progress(stream)``, and ``detach`` and ``attach`` around evaluations: a batch under way stays where it is.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.train_pipeline import (
    PrefetchTrainPipelineSparseDist,
    TrainPipelineBase,
    TrainPipelineSparseDist,
)
from torchrec.optim.keyed import CombinedOptimizer

from dlrm_app.loader.batch import Batch
from dlrm_app.model.loss import StepOutput


class OneByOne(TrainPipelineBase[Batch, StepOutput]):
    """Prefetches the copy of the next batch and nothing more; ``detach`` and ``attach`` as of the others."""

    def detach(self) -> None:
        """Forgets a stream at its end; the model was not changed."""
        if self._data_iter_stopped:
            self.reset()

    def attach(self, sparse_dist: bool = False) -> None:
        """Does nothing."""


class Prefetch(PrefetchTrainPipelineSparseDist[Batch, StepOutput]):
    """torchrec's, which attaches itself again like the others."""

    def progress(self, dataloader_iter: Iterator[Batch]) -> StepOutput:
        """Takes a step."""
        if not self._model_attached:
            self.attach(self._model)
        return super().progress(dataloader_iter)


def make_pipeline(
    name: str, model: DistributedModelParallel, optimizer: CombinedOptimizer, device: torch.device
) -> Any:
    """The pipeline called ``name``; every batch that it was given is trained on."""
    if name == "base":
        return OneByOne(model, optimizer, device)
    if name == "prefetch":
        return Prefetch(model, optimizer, device)
    return TrainPipelineSparseDist(model, optimizer, device)
