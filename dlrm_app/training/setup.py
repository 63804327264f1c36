"""From a configuration and a dataset to a sharded model, its optimizer and its pipeline."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingPlan
from torchrec.optim.keyed import CombinedOptimizer

from dlrm_app.config.train import TrainConfig
from dlrm_app.data.batch_order import check_lanes
from dlrm_app.data.manifest import Manifest, read_manifest
from dlrm_app.data.pooling_factors import with_pooling_factors
from dlrm_app.data.shard_files import verify_shards
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import ConfigError, DataError, refuse_if
from dlrm_app.model.build import model_problems, model_table_problems
from dlrm_app.sharding.communication import collective_problems
from dlrm_app.sharding.constraints import sharding_problems
from dlrm_app.sharding.kernels import table_problems
from dlrm_app.sharding.plan.measured import Measured
from dlrm_app.sharding.sharded_model import plan_model, shard_model
from dlrm_app.tables.specs import Table, resolve_tables
from dlrm_app.training.optimizers import combine_optimizers
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
    model_faults = model_problems(config.model)
    problems += model_faults
    tables: list[Table] = []
    try:
        tables = resolve_tables(config.tables, feature_rows)
        problems += table_problems(tables, config.optimizer.sparse, config.sharding, runtime.device.type)
        problems += sharding_problems(tables, config.sharding, runtime.device.type)
        if not model_faults:
            problems += model_table_problems(config.model, tables, len(manifest.dense))
    except ConfigError as error:
        problems += error.problems
    refuse_if(problems)
    verify_shards(manifest, checksums=config.data.verify)
    tables = with_pooling_factors(tables, manifest)
    unused = sorted(set(feature_rows) - {name for table in tables for name in table.features})
    if unused:
        logger.warning("no table reads %s: these features are left out", ", ".join(unused))
    return manifest, tables


def build_trainable(
    config: TrainConfig,
    tables: Sequence[Table],
    num_dense: int,
    runtime: Runtime,
    guard: nn.Module | None = None,
) -> Trainable:
    """Builds on the meta device, plans, shards, and sets every weight from ``trainer.seed``.

    ``guard``: what the loss passes before the backward pass.
    """
    measured = Measured(runtime)
    task, plan = plan_model(config, tables, num_dense, runtime, guard)
    refuse_if(plan_problems(config.trainer.pipeline, plan))
    model = shard_model(task, plan, tables, config, runtime)
    optimizer = combine_optimizers(model, tables, config.optimizer)
    pipeline = make_pipeline(config.trainer.pipeline, model, optimizer, runtime.device)
    features = [name for table in tables for name in table.features]
    return Trainable(tables, features, model, optimizer, pipeline, plan, measured)
