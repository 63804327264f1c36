"""From a configuration and a dataset to a sharded model, its optimizer and its pipeline."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper, DistributedModelParallel
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.optim.keyed import CombinedOptimizer

from dlrm_app.config.train import TrainConfig
from dlrm_app.data.batch_order import check_lanes
from dlrm_app.data.manifest import Manifest, read_manifest
from dlrm_app.data.pooling_factors import expect_hotness
from dlrm_app.data.reader import verify_shards
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import ConfigError, DataError, refuse_if
from dlrm_app.model.build import build_model
from dlrm_app.model.initial_weights import init_tables
from dlrm_app.model.loss import ClickTask
from dlrm_app.model.precision import set_tf32
from dlrm_app.sharding.communication import collective_problems, quantized_collectives
from dlrm_app.sharding.constraints import dense_by_wish, sharding_problems, warn_of_other_algorithms
from dlrm_app.sharding.plan.measured import Measured
from dlrm_app.sharding.planner.planner import make_plan
from dlrm_app.sharding.sharder import AnyShardingSharder
from dlrm_app.tables.specs import Table, resolve_tables
from dlrm_app.training.optimizers import (
    attach_fused_optimizers,
    combine_optimizers,
    dense_kernel_tables,
    table_problems,
    table_settings,
)
from dlrm_app.training.pipelines import make_pipeline, pipeline_problems, plan_problems
from dlrm_app.training.schedules import schedule_problems

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trainable:
    """A model ready to train: ``model`` is sharded, ``features`` are the sparse features in the order it reads."""

    tables: Sequence[Table]
    features: list[str]
    model: DistributedModelParallel
    optimizer: CombinedOptimizer
    pipeline: Any
    plan: ShardingPlan
    measured: Measured


def open_dataset(config: TrainConfig, runtime: Runtime) -> tuple[Manifest, list[Table]]:
    """The dataset's manifest and the tables that fit it. Raises DataError or ConfigError, all problems in one."""
    manifest = read_manifest(Path(config.data.path))
    if "train" not in manifest.splits or manifest.label is None:
        raise DataError(f"{config.data.path} has no labelled train split: preprocess with input.train=…")
    feature_rows = {column.name: column.num_embeddings for column in manifest.sparse}
    rows = manifest.splits["train"].rows
    problems = check_lanes(
        global_batch_size=config.trainer.global_batch_size,
        lanes=config.data.lanes,
        world_size=runtime.world_size,
        rows=rows,
    )
    problems += schedule_problems(config.schedule, config.trainer.num_steps(rows))
    problems += pipeline_problems(config.trainer.pipeline, config.evaluation, runtime.device)
    problems += collective_problems(
        config.sharding.collectives,
        config.trainer.global_batch_size // runtime.world_size * config.model.ensemble_size,
        config.evaluation.batch_size,
    )
    tables: list[Table] = []
    try:
        tables = resolve_tables(config.tables, feature_rows)
        problems += table_problems(tables, config.optimizer.sparse, config.sharding, runtime.device)
        problems += sharding_problems(tables, config.sharding, runtime.device.type)
    except ConfigError as error:
        problems += error.problems
    refuse_if(problems)
    verify_shards(manifest, checksums=config.data.verify)
    tables = expect_hotness(tables, manifest)
    unused = sorted(set(feature_rows) - {name for table in tables for name in table.features})
    if unused:
        logger.warning("no table reads %s: these features are left out", ", ".join(unused))
    return manifest, tables


def build_trainable(
    config: TrainConfig,
    tables: Sequence[Table],
    num_dense: int,
    runtime: Runtime,
    plan: ShardingPlan | None = None,
) -> Trainable:
    """Builds on the meta device, plans, shards, and sets every weight from ``trainer.seed``."""
    set_tf32(config.trainer.tf32, runtime.device)
    measured = Measured(runtime)
    seed = config.trainer.seed
    model = build_model(config.model, tables, num_dense, runtime.device, seed)
    attach_fused_optimizers(model, tables, config.optimizer.sparse)
    task = ClickTask(model, runtime.device, config.trainer.precision == "bf16")
    if plan is None:
        plan = make_plan(
            task,
            tables,
            dense_kernel_tables(tables, config.optimizer.sparse, runtime.device)
            | dense_by_wish(tables, config.sharding),
            config.optimizer.sparse,
            config.sharding,
            config.topology,
            config.trainer.global_batch_size * config.model.ensemble_size,
            runtime,
        )
    refuse_if(plan_problems(config.trainer.pipeline, plan))
    if runtime.is_first:
        warn_of_other_algorithms(
            plan, {table.name: table_settings(table, config.optimizer.sparse).kind for table in tables}
        )
    group = dist.GroupMember.WORLD
    assert group is not None
    sharded = DistributedModelParallel(
        task,
        env=ShardingEnv.from_process_group(group),
        device=runtime.device,
        plan=plan,
        sharders=[make_sharder(config)],
        # Otherwise DDP reorders its gradients after the first step, also after the first one of a resumed run,
        # and from three ranks on another order adds them up in another order: no resume would be exact.
        data_parallel_wrapper=DefaultDataParallelWrapper(static_graph=False, find_unused_parameters=True),
    )
    init_tables(sharded, tables, seed)
    optimizer = combine_optimizers(sharded, tables, config.optimizer)
    pipeline = make_pipeline(config.trainer.pipeline, sharded, optimizer, runtime.device)
    features = [name for table in tables for name in table.features]
    return Trainable(tables, features, sharded, optimizer, pipeline, plan, measured)


def make_sharder(config: TrainConfig) -> AnyShardingSharder:
    """The sharder with what the configuration says of collectives, and of caches that are filled ahead."""
    return AnyShardingSharder(
        fused_params={"prefetch_pipeline": True} if config.trainer.pipeline == "prefetch" else None,
        qcomm_codecs_registry=quantized_collectives(config.sharding.collectives),
    )
