"""Plans the placement of tables on ranks, or reads it from a file, and shards a model by that plan."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torchrec.distributed.model_parallel import (
    DataParallelWrapper,
    DefaultDataParallelWrapper,
    DistributedModelParallel,
)
from torchrec.distributed.types import ShardingEnv

from dlrm_app.config.optimizer import SparseSettings
from dlrm_app.config.sharding import CollectivesConfig, ShardingConfig, TopologyConfig
from dlrm_app.distributed.collectives import all_gather_objects
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import DlrmError, Problem, refuse_if
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.frozen_rows import set_vectors
from dlrm_app.model.initial_weights import init_tables
from dlrm_app.model.loss import ClickTask
from dlrm_app.sharding.cluster import Cluster, running_cluster
from dlrm_app.sharding.constraints import COLUMN_TYPES, dense_kernel_tables, table_names
from dlrm_app.sharding.cost import Workload, estimate_options
from dlrm_app.sharding.placement import Assignment, rank_loads
from dlrm_app.sharding.plan import EstimatedPlan, module_paths, to_plan
from dlrm_app.sharding.plan_file import load_plan
from dlrm_app.sharding.search import explain_misfit, search
from dlrm_app.sharding.sharder import make_sharders
from dlrm_app.tables.bags import attach_fused_optimizers
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS, optimizer_kinds
from dlrm_app.tables.table import Table
from dlrm_app.text import memory_text

logger = logging.getLogger(__name__)


def plan_model(
    task: ClickTask,
    tables: Sequence[Table],
    sparse: SparseSettings,
    sharding: ShardingConfig,
    topology: TopologyConfig,
    batch_size: int,
    runtime: Runtime,
) -> EstimatedPlan:
    """Plans the tables of ``task`` (on the meta device), the same on every rank, and attaches their fused optimizers.

    ``batch_size``: rows that all ranks together look up in a step. Raises the same DlrmError on every rank
    if the tables do not fit (with needed and available memory, and cures), if ``sharding.plan`` is for
    other tables or ranks, or if ``topology`` is for other ranks.
    """
    attach_fused_optimizers(task.model, tables, sparse)
    cluster = _with_least_memory(running_cluster(topology, runtime))
    work = make_workload(tables, sparse, sharding, batch_size, cluster.device)
    # one rank plans: sums in another order could give another plan
    found = runtime.on_first(find_assignment, work, cluster)
    return to_plan(found, module_paths(task), work, cluster)


def make_workload(
    tables: Sequence[Table],
    sparse: SparseSettings,
    sharding: ShardingConfig,
    global_batch_size: int,
    device_type: str,
) -> Workload:
    """The input of a plan, for ranks that compute on ``device_type``."""
    return Workload(
        {table.name: table for table in tables},
        sharding,
        optimizer_kinds(tables, sparse),
        frozenset(dense_kernel_tables(tables, sparse, sharding, device_type)),
        global_batch_size,
    )


def find_assignment(work: Workload, cluster: Cluster) -> Assignment:
    """The assignment from ``sharding.plan``'s file if it is set, otherwise the planner's.

    Raises DlrmError if no plan fits, or if the file is for other tables, other ranks or more memory.
    """
    sharding = work.sharding
    if sharding.plan is not None:
        loaded = load_plan(Path(sharding.plan), work, cluster)
        refuse_if(_overfull(loaded, sharding.plan, cluster))
        return loaded
    assignment = search(estimate_options(work, cluster), cluster)
    if assignment is None:
        logger.info("the tables do not fit; looking for settings that make them fit …")
        raise DlrmError(explain_misfit(work, cluster))
    return assignment


def _overfull(assignment: Assignment, path: str, cluster: Cluster) -> list[Problem]:
    """Problems: the fullest rank, if a plan from a file gives it more than its memory can hold."""
    loads = rank_loads(assignment, cluster.num_ranks)
    for what, needed, room in (
        ("", loads.device, cluster.usable),
        (" of its host", loads.host, cluster.usable_host),
    ):
        if needed.max() > room:
            rule = (
                f"gives rank {needed.argmax()} {memory_text(needed.max())} of tables, but "
                f"{memory_text(room)}{what} are free (topology.reserved_share={cluster.reserved_share:g} is "
                "kept for the rest)"
            )
            cure = "plan again for ranks like these, or leave sharding.plan out"
            return [Problem(f"sharding.plan={path}", rule, cure)]
    return []


def _with_least_memory(cluster: Cluster) -> Cluster:
    """The cluster with the memory of its smallest rank, since machines may differ."""
    if cluster.num_ranks == 1:
        return cluster
    sizes = all_gather_objects((cluster.memory, cluster.host_memory))
    memory, host_memory = map(min, zip(*sizes, strict=True))
    return replace(cluster, memory=memory, host_memory=host_memory)


def shard_model(
    task: ClickTask,
    plan: EstimatedPlan,
    spec: ModelSpec,
    collectives: CollectivesConfig,
    runtime: Runtime,
    prefetches: bool = False,
    draws: bool = True,
) -> DistributedModelParallel:
    """Allocates this rank's shards according to ``plan`` and sets every table's weights from ``spec.seed``.

    ``prefetches``: the pipeline fills the caches of GPUs ahead of the lookups. ``draws``: False leaves the tables
    uninitialised, for a model whose every weight is loaded afterwards.
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
        sharders=list(make_sharders(collectives, prefetches)),
        data_parallel_wrapper=replicated_dense_part(runtime),
    )
    if draws:
        init_tables(model, spec.tables, spec.seed)
    set_vectors(model, spec.tables)
    return model


def replicated_dense_part(runtime: Runtime) -> DataParallelWrapper:
    """The wrapper that averages the dense part's gradients over the ranks; for one rank it does nothing."""
    if runtime.world_size == 1:
        return NoWrapper()
    # Without the search for unused parameters (a walk of the graph and a message in each step), DDP reorders its
    # gradients after the first step, also after the first one of a resumed run. With three or more ranks another
    # order changes the sums, so no resume would be exact. On GPUs resumes are exact only with trainer.deterministic.
    is_exact = runtime.device_type == "cpu" or torch.are_deterministic_algorithms_enabled()
    return DefaultDataParallelWrapper(static_graph=False, find_unused_parameters=is_exact)


class NoWrapper(DataParallelWrapper):
    """A wrapper that leaves the dense part as it is, without DistributedDataParallel."""

    def wrap(self, dmp: DistributedModelParallel, env: ShardingEnv, device: torch.device) -> None:
        """Nothing to do."""


def warn_of_other_algorithms(assignment: Assignment, optimizers: Mapping[str, str]) -> None:
    """Warns of tables with split rows whose optimizer reduces over whole rows. ``optimizers``: table name → kind."""
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
