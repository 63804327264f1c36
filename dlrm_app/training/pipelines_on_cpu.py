"""The pipelines that look rows up early, on a device without streams.

torchrec's hand every tensor to a stream, which tensors on CPU refuse. These take the same stages in the same order; what
runs beside other work is the exchange of semi_sync's rows, which gloo's threads carry during the backward pass.
"""

from typing import Any

from torchrec.distributed.train_pipeline.pipeline_context import EmbeddingTrainPipelineContext
from torchrec.distributed.train_pipeline.runtime_forwards import EmbeddingPipelinedForward
from torchrec.distributed.train_pipeline.train_pipelines import (
    TrainPipelineFusedSparseDist,
    TrainPipelineSemiSync,
)
from torchrec.distributed.types import LazyNoWait, ShardedModule
from torchrec.sparse.jagged_tensor import KeyedTensor

from dlrm_app.data.batch import Batch
from dlrm_app.model.loss import StepOutput


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
    """The stages that differ from torchrec's."""

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


class FusedOnCpu(WithoutStreams, TrainPipelineFusedSparseDist[Batch, StepOutput]):
    """fused_sparse_dist on CPU."""

    _pipelined_forward_type = LookedUp


class SemiSyncOnCpu(WithoutStreams, TrainPipelineSemiSync[Batch, StepOutput]):
    """semi_sync on CPU."""

    _pipelined_forward_type = LookedUpApart
