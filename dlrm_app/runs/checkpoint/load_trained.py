"""A model as a checkpoint holds it, on the ranks and under the plan of now."""

from dataclasses import replace
from pathlib import Path

from torchrec.distributed.model_parallel import DistributedModelParallel

from dlrm_app.config.optimizer import SparseSettings
from dlrm_app.config.sharding import ShardingConfig, TopologyConfig
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import ConfigError, DlrmError, SharedError
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.build import build_model
from dlrm_app.model.loss import ClickTask
from dlrm_app.model.precision import set_tf32
from dlrm_app.runs.checkpoint.format import best_checkpoints, choose_checkpoint, list_checkpoints, looks_whole
from dlrm_app.runs.checkpoint.load import load_tensors, open_checkpoint
from dlrm_app.runs.checkpoint.state import collect_weights
from dlrm_app.runs.checkpoint.trained_model import EMA, MODEL, TrainedModel, describe_trained
from dlrm_app.sharding.sharded_model import plan_model, shard_model

NO_OPTIMIZER = SparseSettings(kind="sgd", lr=1.0)
"""SGD keeps no state, and is fused on every device: a model that is only read needs the memory of its weights."""


def open_trained(path: Path, runtime: Runtime, which: str = "newest", ema: bool = False) -> TrainedModel:
    """Verifies the checkpoint at ``path`` and reads what it tells. Raises DlrmError on every rank.

    In a run folder: its newest, or with ``which="best"`` the one with the highest AUC on val. ``ema``: with the average
    of its dense weights.
    """
    folder = runtime.together(lambda: choose_checkpoint(path, which))
    try:
        marker = open_checkpoint(folder, runtime).marker
    except DlrmError as error:  # the same on every rank
        another = _another(path, which, folder)
        if another is None:
            raise
        raise SharedError(f"{error}\n  {another}", error.exit_code) from error
    trained = describe_trained(folder, marker, EMA if ema else MODEL)
    if ema and trained.config.optimizer.dense.ema_decay is None:
        raise ConfigError(
            [
                f"ema=true: {folder} has no average of its dense weights: leave ema=true out, or train with "
                "optimizer.dense.ema_decay=0.999"
            ]
        )
    return trained


def _another(path: Path, which: str, damaged: Path) -> str | None:
    """What to type in place of a damaged checkpoint, if the run has another."""
    ranked = best_checkpoints if which == "best" else list_checkpoints
    others = [each for each in ranked(path / "checkpoints") if each != damaged and looks_whole(each)]
    return f"the next {which} is {others[0].name}: name {others[0]}" if others else None


def load_trained(
    trained: TrainedModel,
    sharding: ShardingConfig,
    topology: TopologyConfig,
    batch_size: int,
    runtime: Runtime,
) -> DistributedModelParallel:
    """The sharded model with its weights, ready for ``evaluate``; ``batch_size`` rows a rank are planned for."""
    tables = [replace(table, optimizer={}) for table in trained.tables]
    trainer, rows = trained.config.trainer, batch_size * runtime.world_size
    spec = ModelSpec(trained.config.model, tables, len(trained.columns["dense"]), trainer.seed)

    def build() -> DistributedModelParallel:
        set_tf32(trainer.tf32, runtime.device)
        task = ClickTask(build_model(spec, runtime.device), runtime.device)
        rows_looked_up = rows * spec.config.ensemble_size
        plan = plan_model(task, tables, NO_OPTIMIZER, sharding, topology, rows_looked_up, runtime)
        return shard_model(task, plan, spec, sharding.collectives, runtime)

    model = runtime.together(build)
    runtime.together(lambda: load_tensors(trained.folder, collect_weights(model, trained.dense)))
    return model
