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
    """torchrec's, which attaches itself again like the others; its streams on a GPU share memory without a race.

    torchrec lets the exchange of the next ids begin while rows of the last ones are still fetched, whose memory it may
    be given again (torchrec's pull request 4191), and tells the allocator of a stream on which nothing is computed.
    """

    def __init__(
        self, model: DistributedModelParallel, optimizer: CombinedOptimizer, device: torch.device
    ) -> None:
        super().__init__(model, optimizer, device)
        if device.type == "cuda":
            self._default_stream = torch.cuda.current_stream(device)

    def start_sparse_data_dist(self, batch: Batch | None, context: Any) -> None:
        """Starts the exchange of ids once the rows of earlier ones are fetched, without waiting on the host."""
        if self._data_dist_stream is not None:
            self._data_dist_stream.wait_stream(self._prefetch_stream)
        super().start_sparse_data_dist(batch, context)

    def progress(self, dataloader_iter: Iterator[Batch]) -> StepOutput:
        """Takes a step."""
        if not self._model_attached:
            self.attach(self._model)
        return super().progress(dataloader_iter)


def make_pipeline(
    name: str, model: DistributedModelParallel, optimizer: CombinedOptimizer, device: torch.device
) -> Any:
    """The pipeline called ``name``; every batch that it was given is trained on."""
    kinds: dict[str, Any] = {"base": OneByOne, "sparse_dist": TrainPipelineSparseDist, "prefetch": Prefetch}
    return kinds[name](model, optimizer, device)
