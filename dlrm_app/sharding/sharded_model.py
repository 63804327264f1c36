"""A model planned and sharded over all ranks, with its initial weights."""

import logging
from collections import defaultdict
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torchrec.distributed.model_parallel import (
    DataParallelWrapper,
    DefaultDataParallelWrapper,
    DistributedModelParallel,
)
from torchrec.distributed.types import ShardingEnv

from dlrm_app.config.sharding import CollectivesConfig
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.initial_weights import init_tables
from dlrm_app.model.loss import ClickTask
from dlrm_app.sharding.constraints import table_names
from dlrm_app.sharding.placement import Assignment
from dlrm_app.sharding.plan import EstimatedPlan
from dlrm_app.sharding.sharder import AnyShardingSharder, quantized_collectives
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS

logger = logging.getLogger(__name__)

COLUMN_TYPES = {"column_wise", "table_column_wise", "grid_shard"}


def shard_model(
    task: ClickTask,
    plan: EstimatedPlan,
    spec: ModelSpec,
    collectives: CollectivesConfig,
    runtime: Runtime,
    prefetches: bool = False,
) -> DistributedModelParallel:
    """Allocates this rank's shards by ``plan`` and sets every table's weights from ``spec.seed``.

    ``prefetches``: the pipeline fills the caches of GPUs ahead of the lookups.
    """
    if runtime.is_first:
        warn_of_other_algorithms(plan.assignment, plan.work.optimizers)
    group = dist.GroupMember.WORLD
    assert group is not None
    model = DistributedModelParallel(
        task,
        env=ShardingEnv.from_process_group(group),
        device=runtime.device,
        plan=plan,
        sharders=[make_sharder(collectives, prefetches)],
        data_parallel_wrapper=_replicated_dense_part(runtime),
    )
    init_tables(model, spec.tables, spec.seed)
    return model


def _replicated_dense_part(runtime: Runtime) -> DataParallelWrapper:
    """The wrapper that averages the dense part's gradients over the ranks; one rank needs none."""
    if runtime.world_size == 1:
        return AsItIs()
    # Without the search, which takes a walk of the graph and a message in each step, DDP reorders its gradients after the
    # first step, also after the first one of a resumed run, and from three ranks on another order adds them up in
    # another order: no resume would be exact. On GPUs they are exact with trainer.deterministic alone.
    is_exact = runtime.device_type == "cpu" or torch.are_deterministic_algorithms_enabled()
    return DefaultDataParallelWrapper(static_graph=False, find_unused_parameters=is_exact)


class AsItIs(DataParallelWrapper):
    """Leaves the dense part without DistributedDataParallel."""

    def wrap(self, dmp: DistributedModelParallel, env: ShardingEnv, device: torch.device) -> None:
        """Nothing to do."""


def make_sharder(collectives: CollectivesConfig, prefetches: bool) -> AnyShardingSharder:
    """The sharder with the precision of ``collectives``, and caches that are filled by prefetching or not."""
    return AnyShardingSharder(
        fused_params={"prefetch_pipeline": True} if prefetches else None,
        qcomm_codecs_registry=quantized_collectives(collectives),
    )


def warn_of_other_algorithms(assignment: Assignment, optimizers: Mapping[str, str]) -> None:
    """Warns of split rows whose optimizer (table name → kind) reduces over whole rows."""
    split: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, placed in assignment.items():
        kind, optimizer = placed.option.sharding_type, optimizers[name]
        is_split = kind in COLUMN_TYPES and placed.option.offsets[:, 1].any()
        if is_split and SPARSE_OPTIMIZERS[optimizer].reduces_over_rows:
            split[kind, optimizer].append(name)
    for (kind, optimizer), names in split.items():
        logger.warning(
            "%s: %s reduces over the part of a row that a rank holds under %s, so training differs from unsplit "
            "rows: choose table_wise or row_wise, or an optimizer without row statistics (docs/how-to/sharding.md)",
            table_names(names),
            optimizer,
            kind,
        )
