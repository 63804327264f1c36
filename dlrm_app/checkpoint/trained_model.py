"""A model as a checkpoint holds it, on the ranks and under the plan of now."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchrec.distributed.model_parallel import DistributedModelParallel

from dlrm_app.checkpoint.format import best_checkpoints, choose_checkpoint, list_checkpoints, looks_whole
from dlrm_app.checkpoint.load import load_tensors, open_checkpoint
from dlrm_app.checkpoint.marker import Marker
from dlrm_app.checkpoint.state import EMA, MODEL, collect_weights
from dlrm_app.config.optimizer import DenseSettings, OptimizerConfig, SparseSettings
from dlrm_app.config.saved import read_saved_config
from dlrm_app.config.sharding import ShardingConfig, TopologyConfig
from dlrm_app.config.train import TrainConfig
from dlrm_app.data.columns import refuse_other_columns
from dlrm_app.data.manifest import Manifest
from dlrm_app.display.command_line import setting
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import ConfigError, DataError, DlrmError, SharedError
from dlrm_app.sharding.sharded_model import plan_model, shard_model
from dlrm_app.tables.specs import Table, resolve_tables

NO_OPTIMIZER = OptimizerConfig(SparseSettings(kind="sgd", lr=1.0), DenseSettings(kind="sgd", lr=1.0))
"""SGD keeps no state, and is fused on every device: a model that is only read needs the memory of its weights."""


@dataclass(frozen=True)
class TrainedModel:
    """A whole checkpoint, not loaded yet, with how its dataset was encoded, its configuration, and its tables."""

    folder: Path
    marker: Marker
    columns: dict[str, Any]
    config: TrainConfig
    tables: Sequence[Table]
    dense: str = MODEL
    """MODEL, or EMA for the average of the dense weights in their place."""

    @property
    def features(self) -> list[str]:
        """The sparse features, in the order that the model reads them."""
        return [name for table in self.tables for name in table.features]

    @property
    def name(self) -> str:
        """Run and step, for people."""
        average = ", averaged" if self.dense == EMA else ""
        return f"{self.folder.absolute().parents[1].name}/{self.folder.name}{average}"


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
    columns = marker.columns
    if columns is None:
        raise DataError(
            f"checkpoint {folder} was saved by an early dlrm-app and does not say how its dataset is encoded: save it "
            "again with the same dlrm-train command, resume=auto and a higher trainer.epochs or trainer.max_steps"
        )
    config = read_saved_config(marker.config, folder)
    feature_rows = {column["name"]: column["num_embeddings"] for column in columns["sparse"]}
    tables = [replace(table, optimizer={}) for table in resolve_tables(config.tables, feature_rows)]
    if ema and config.optimizer.dense.ema_decay is None:
        raise ConfigError(
            [
                f"ema=true: {folder} has no average of its dense weights: leave ema=true out, or train with "
                "optimizer.dense.ema_decay=0.999"
            ]
        )
    return TrainedModel(folder, marker, columns, config, tables, EMA if ema else MODEL)


def _another(path: Path, which: str, damaged: Path) -> str | None:
    """What to type in place of a damaged checkpoint, if the run has another."""
    ranked = best_checkpoints if which == "best" else list_checkpoints
    others = [each for each in ranked(path / "checkpoints") if each != damaged and looks_whole(each)]
    return f"the next {which} is {others[0].name}: name {others[0]}" if others else None


def check_columns(trained: TrainedModel, manifest: Manifest) -> None:
    """Raises DataError naming every column that ``manifest`` encodes in another way than the model's dataset."""
    if trained.marker.dataset != manifest.fingerprint():
        encoding = setting("encoding.path", trained.config.data.path)
        refuse_other_columns(trained.columns, manifest, trained.features, trained.folder, encoding)


def load_trained(
    trained: TrainedModel,
    sharding: ShardingConfig,
    topology: TopologyConfig,
    batch_size: int,
    runtime: Runtime,
) -> DistributedModelParallel:
    """The sharded model with its weights, ready for ``evaluate``; ``batch_size`` rows a rank are planned for."""
    config = replace(trained.config, sharding=sharding, topology=topology, optimizer=NO_OPTIMIZER)
    size = batch_size * runtime.world_size
    config.trainer = replace(config.trainer, global_batch_size=size, pipeline="base")  # it takes no step
    num_dense = len(trained.columns["dense"])

    def build() -> DistributedModelParallel:
        task, plan = plan_model(config, trained.tables, num_dense, runtime)
        return shard_model(task, plan, trained.tables, config, runtime)

    model = runtime.together(build)
    runtime.together(lambda: load_tensors(trained.folder, collect_weights(model, trained.dense)))
    return model
