"""torchrec's train pipelines by name: how much of the next batches' work is prefetched during a step.

Each has ``progress(stream)``, and ``detach`` and ``attach`` around evaluations: a batch under way stays where it is.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.train_pipeline import (
    PrefetchTrainPipelineSparseDist,
    TrainPipelineBase,
    TrainPipelineFusedSparseDist,
    TrainPipelineSparseDist,
)
from torchrec.distributed.train_pipeline.pipeline_context import EmbeddingTrainPipelineContext
from torchrec.distributed.train_pipeline.runtime_forwards import EmbeddingPipelinedForward
from torchrec.distributed.train_pipeline.train_pipelines import TrainPipelineSemiSync
from torchrec.distributed.types import LazyNoWait, ShardedModule
from torchrec.optim.keyed import CombinedOptimizer
from torchrec.sparse.jagged_tensor import KeyedTensor

from dlrm_app.loader.batch import Batch
from dlrm_app.model.loss import StepOutput
from dlrm_app.sharding.plan.estimated_plan import EstimatedPlan
from dlrm_app.training.validation import early_lookup_problems


class OneByOne(TrainPipelineBase[Batch, StepOutput]):
    """Prefetches the copy of the next batch and nothing more; ``detach`` and ``attach`` as of the others."""

    def detach(self) -> None:
        """Nothing of the model was changed; a stream at its end is forgotten."""
        if self._data_iter_stopped:
            self.reset()

    def attach(self, sparse_dist: bool = False) -> None:
        """Nothing to do."""


class Prefetch(PrefetchTrainPipelineSparseDist[Batch, StepOutput]):
    """torchrec's, which attaches itself again like the others."""

    def progress(self, dataloader_iter: Iterator[Batch]) -> StepOutput:
        """Takes a step."""
        if not self._model_attached:
            self.attach(self._model)
        return super().progress(dataloader_iter)


class EarlyLookups:
    """The pipelines that look rows up before the step of their batch, where fbgemm keeps the learning rate of the update.

    What torchrec hands over in that step, in ``zero_grad``, comes too late: the rates of the first steps would be those
    of factor 1, and all others one step behind, or two.
    """

    before_lookup: Callable[[], None] = staticmethod(lambda: None)
    """Called once for each batch, in their order."""

    def start_embedding_lookup(self, batch: Batch | None, context: EmbeddingTrainPipelineContext) -> None:
        """Looks the rows of ``batch`` up, with the rates of its step."""
        if batch is not None:
            self.before_lookup()
        super().start_embedding_lookup(batch, context)  # type: ignore[misc]  # of the pipeline behind this one


class FusedSparseDist(EarlyLookups, TrainPipelineFusedSparseDist[Batch, StepOutput]):
    """torchrec's, with the rates of each lookup."""


class SemiSync(EarlyLookups, TrainPipelineSemiSync[Batch, StepOutput]):
    """torchrec's, with the rates of each lookup."""


class LookedUp(EmbeddingPipelinedForward):
    """Stands in for the tables' forward: gives what was looked up before."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        """The pooled embeddings of the step's batch."""
        self._context.module_contexts.pop(self._name)
        embeddings = self._context.embedding_a2a_requests.pop(self._name).wait()
        assert isinstance(embeddings, KeyedTensor)
        return LazyNoWait(self.hand_over(embeddings))

    def hand_over(self, embeddings: KeyedTensor) -> KeyedTensor:
        """As they are: the backward pass of the loss goes on into the tables."""
        return embeddings


class LookedUpApart(LookedUp):
    """The tables' backward pass is a call of its own, after that of the loss."""

    def hand_over(self, embeddings: KeyedTensor) -> KeyedTensor:
        """A leaf in their place; the context keeps both."""
        looked_up = embeddings.values()
        leaf = looked_up.detach().requires_grad_()
        self._context.embedding_tensors.append([looked_up])
        self._context.embedding_features.append([list(embeddings.keys())])
        self._context.detached_embedding_tensors.append([leaf])
        return KeyedTensor(embeddings.keys(), embeddings.length_per_key(), leaf, key_dim=1)


class WithoutStreams:
    """The pipelines that look rows up early, on a device without streams, to which torchrec's hand every tensor.

    They take the same stages in the same order; what runs beside other work is the exchange of semi_sync's rows, which
    gloo's threads carry during the backward pass.
    """

    _pipelined_modules: list[ShardedModule[Any, Any, Any, Any]]
    _model_fwd: Any

    def start_embedding_lookup(self, batch: Batch | None, context: EmbeddingTrainPipelineContext) -> None:
        """Looks the rows of ``batch`` up and sends them on their way."""
        for module in self._pipelined_modules if batch is not None else ():
            name = module.forward.name
            ids = context.input_dist_tensors_requests[name].wait()
            looked_up = module.compute_and_output_dist(context.module_contexts[name], ids)
            context.embedding_a2a_requests[name] = looked_up

    def _mlp_forward(self, batch: Batch, _: EmbeddingTrainPipelineContext) -> Any:
        return self._model_fwd(batch)


class FusedOnCpu(EarlyLookups, WithoutStreams, TrainPipelineFusedSparseDist[Batch, StepOutput]):
    """fused_sparse_dist on CPU."""

    _pipelined_forward_type = LookedUp


class SemiSyncOnCpu(EarlyLookups, WithoutStreams, TrainPipelineSemiSync[Batch, StepOutput]):
    """semi_sync on CPU."""

    _pipelined_forward_type = LookedUpApart


def make_pipeline(
    name: str, model: DistributedModelParallel, optimizer: CombinedOptimizer, device: torch.device
) -> Any:
    """The pipeline called ``name``; every batch that it was given is trained on."""
    on_cpu = device.type == "cpu"
    if name == "base":
        return OneByOne(model, optimizer, device)
    if name == "prefetch":
        return Prefetch(model, optimizer, device)
    if name == "fused_sparse_dist":
        fused = FusedOnCpu if on_cpu else FusedSparseDist
        return fused(model, optimizer, device)
    if name == "semi_sync":
        semi_sync = SemiSyncOnCpu if on_cpu else SemiSync
        return semi_sync(model, optimizer, device, start_batch=0)
    return TrainPipelineSparseDist(model, optimizer, device)


def plan_problems(name: str, plan: EstimatedPlan) -> list[str]:
    """Tables of ``plan`` that the pipeline would read while their optimizer still writes them."""
    dense = [table for table, placed in plan.assignment.items() if placed.option.kernel == "dense"]
    return early_lookup_problems(name, dense)
