"""How much of the next batches' work a step does ahead: torchrec's train pipelines, by name.

Each has ``progress(stream)``, and ``detach`` and ``attach`` around evaluations: a batch under way stays where it is.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.train_pipeline import (
    PrefetchTrainPipelineSparseDist,
    TrainPipelineBase,
    TrainPipelineFusedSparseDist,
    TrainPipelineSparseDist,
)
from torchrec.distributed.train_pipeline.train_pipelines import TrainPipelineSemiSync
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingPlan
from torchrec.optim.keyed import CombinedOptimizer

from dlrm_app.config.train import EvaluationConfig
from dlrm_app.data.batch import Batch
from dlrm_app.display.numbers import count
from dlrm_app.model.loss import StepOutput
from dlrm_app.training.pipelines_on_cpu import FusedOnCpu, SemiSyncOnCpu

LOOKS_UP_EARLY = ("fused_sparse_dist", "semi_sync")


class OneByOne(TrainPipelineBase[Batch, StepOutput]):
    """Copies the next batch ahead and nothing more; ``detach`` and ``attach`` as of the others."""

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
        fused = FusedOnCpu if on_cpu else TrainPipelineFusedSparseDist
        return fused(model, optimizer, device)
    if name == "semi_sync":
        semi_sync = SemiSyncOnCpu if on_cpu else TrainPipelineSemiSync
        return semi_sync(model, optimizer, device, start_batch=0)
    return TrainPipelineSparseDist(model, optimizer, device)


def pipeline_problems(name: str, evaluation: EvaluationConfig, device: torch.device) -> list[str]:
    """What the device or the evaluations do not allow."""
    if name != "prefetch":
        return []
    problems = []
    if device.type == "cpu":
        problems.append(
            "trainer.pipeline=prefetch fetches rows into a GPU's cache (kernel fused_uvm_caching), and there is no GPU: "
            "use trainer.pipeline=sparse_dist"
        )
    for key in ("every_steps", "per_epoch"):
        if getattr(evaluation, key) is not None:
            problems.append(
                f"trainer.pipeline=prefetch holds rows in the cache for the batch under way, which evaluation.{key} would "
                f"take away: set it to null, or use trainer.pipeline=sparse_dist"
            )
    return problems


def plan_problems(name: str, plan: ShardingPlan) -> list[str]:
    """Tables of ``plan`` that the pipeline would read while their optimizer still writes them."""
    tables: list[str] = []
    for module_plan in plan.plan.values():
        assert isinstance(module_plan, EmbeddingModuleShardingPlan)
        tables += [table for table, sharding in module_plan.items() if sharding.compute_kernel == "dense"]
    return early_lookup_problems(name, tables)


def early_lookup_problems(name: str, dense_tables: Sequence[str]) -> list[str]:
    """Why the pipeline cannot train ``dense_tables``, which are those of the dense kernel."""
    if name not in LOOKS_UP_EARLY or not dense_tables:
        return []
    return [
        f"trainer.pipeline={name} looks rows up before the optimizer beside the model has stepped, which updates "
        f"{count(len(dense_tables), 'table')} (as {dense_tables[0]}) that are replicated or have no fused optimizer "
        "here: use trainer.pipeline=sparse_dist, or an optimizer and sharding types that are fused (docs/how-to/optimizers.md)"
    ]
