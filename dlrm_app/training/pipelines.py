"""torchrec's train pipelines by name. They differ in how much work of the next batches is done during a step.

Each has ``progress(stream)``, and ``detach`` and ``attach`` around evaluations; prefetched batches are kept.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

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
    """Prefetches only the copy of the next batch; has ``detach`` and ``attach`` like the others."""

    def detach(self) -> None:
        """Forgets a stream that has ended; the model needs no change."""
        if self._data_iter_stopped:
            self.reset()

    def attach(self, sparse_dist: bool = False) -> None:
        """Does nothing."""


class Prefetch(PrefetchTrainPipelineSparseDist[Batch, StepOutput]):
    """torchrec's prefetching pipeline, with automatic attach, and without a race between its GPU streams.

    torchrec starts the exchange of the next ids while rows of the last ids are still fetched. It may then reuse memory
    still in use (torchrec's pull request 4191). It also names the allocator a stream on which nothing is computed.
    """

    def __init__(
        self, model: DistributedModelParallel, optimizer: CombinedOptimizer, device: torch.device
    ) -> None:
        super().__init__(model, optimizer, device)
        if device.type == "cuda":
            self._default_stream = torch.cuda.current_stream(device)

    def start_sparse_data_dist(self, batch: Batch | None, context: Any) -> None:
        """Starts the exchange of ids once the rows of earlier ids are fetched; the host does not wait."""
        if self._data_dist_stream is not None:
            self._data_dist_stream.wait_stream(self._prefetch_stream)
        super().start_sparse_data_dist(batch, context)

    def progress(self, dataloader_iter: Iterator[Batch]) -> StepOutput:
        """Takes a step, attached to the model."""
        if not self._model_attached:
            self.attach(self._model)
        return super().progress(dataloader_iter)


class Pipeline(Protocol):
    """A train pipeline. It trains on every batch that it reads."""

    def progress(self, dataloader_iter: Iterator[Batch]) -> StepOutput:
        """Takes a step."""

    def detach(self) -> None:
        """Restores the model's own forward; batches that were read ahead are kept."""

    def attach(self, sparse_dist: bool = True) -> None:
        """Makes the model's forward the pipeline's again."""


def make_pipeline(
    name: str, model: DistributedModelParallel, optimizer: CombinedOptimizer, device: torch.device
) -> Pipeline:
    """Makes the pipeline called ``name``."""
    kinds: dict[str, Callable[..., Pipeline]] = {
        "base": OneByOne,
        "sparse_dist": TrainPipelineSparseDist,
        "prefetch": Prefetch,
    }
    return kinds[name](model, optimizer, device)
