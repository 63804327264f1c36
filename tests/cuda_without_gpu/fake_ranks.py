"""One rank of any number on GPUs, without the others and without weights: a fake process group, the meta device."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv

from dlrm_app.config.like_train import PlanConfig
from dlrm_app.config.train import TrainConfig
from dlrm_app.errors import refuse_if
from dlrm_app.sharding.cluster import Cluster
from dlrm_app.sharding.plan import EstimatedPlan, module_paths, to_plan
from dlrm_app.sharding.planner import find_assignment
from dlrm_app.sharding.sharder import make_sharders
from dlrm_app.tables.bags import attach_fused_optimizers, meta_bags
from dlrm_app.tables.table import Table
from dlrm_app.training.validation import check_plan, plan_workload
from tests.composed import compose_config


@contextmanager
def fake_rank(rank: int, cluster: Cluster) -> Iterator[None]:
    """This process as ``rank`` of ``cluster``: collectives return at once, with nothing."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LOCAL_WORLD_SIZE", str(cluster.devices_per_node))
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=cluster.num_ranks)
        try:
            yield
        finally:
            dist.destroy_process_group()


def compose_plan(*overrides: str) -> PlanConfig:
    """A configuration of dlrm-plan. Raises ConfigError as the command would."""
    config = compose_config("plan", PlanConfig, [*overrides])
    refuse_if(config.problems())
    return config


def on_paper(config: TrainConfig, tables: Sequence[Table]) -> nn.Module:
    """The tables on the meta device with their optimizers."""
    model = nn.Module()
    model.embedding_bag_collection = meta_bags(tables)
    attach_fused_optimizers(model, tables, config.optimizer.sparse)
    return model


def make_plan(config: PlanConfig) -> EstimatedPlan:
    """Of the cluster that ``config`` describes."""
    cluster, _, tables = check_plan(config)
    work, model = plan_workload(config, tables, cluster.device), on_paper(config, tables)
    return to_plan(find_assignment(work, cluster), module_paths(model), work, cluster)


def shard_on_meta(config: TrainConfig, plan: EstimatedPlan) -> DistributedModelParallel:
    """The tables as ``plan`` shards them to the fake rank, on the meta device."""
    group = dist.GroupMember.WORLD
    assert group is not None
    return DistributedModelParallel(
        on_paper(config, list(plan.work.tables.values())),
        env=ShardingEnv.from_process_group(group),
        device=torch.device("meta"),
        plan=plan,
        sharders=list(make_sharders(config.sharding.collectives, config.trainer.pipeline == "prefetch")),
        init_data_parallel=False,
    )
