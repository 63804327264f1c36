"""Opening a checkpoint, verifying its files and loading its tensors, on all ranks together."""

import logging
from dataclasses import replace
from pathlib import Path

from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torchrec.distributed.model_parallel import DistributedModelParallel

from dlrm_app.config.optimizer import SparseSettings
from dlrm_app.config.sharding import ShardingConfig, TopologyConfig
from dlrm_app.distributed.collectives import while_others_wait
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import ConfigError, DataError, DlrmError
from dlrm_app.kernels.install import install
from dlrm_app.model.build import build_model
from dlrm_app.model.loss import ClickTask, set_tf32
from dlrm_app.runs.checkpoint.marker import (
    EMA,
    MODEL,
    Checkpoint,
    TrainedModel,
    describe_trained,
    keeps_ema,
    read_marker,
    verify_files,
)
from dlrm_app.runs.checkpoint.names import choose_checkpoint, list_checkpoints
from dlrm_app.runs.checkpoint.storage import TensorReader
from dlrm_app.runs.checkpoint.tensors import Tensors, collect_weights
from dlrm_app.sharding.planner import plan_model
from dlrm_app.sharding.sharded_model import shard_model
from dlrm_app.text import bullets

logger = logging.getLogger(__name__)


def open_checkpoint(folder: Path, runtime: Runtime) -> Checkpoint:
    """The checkpoint at ``folder`` once all its files are verified, the work shared among the ranks.

    Raises DataError (on every rank) if it is incomplete or damaged.
    """
    marker = runtime.together(lambda: read_marker(folder))
    names = sorted(marker.files)[runtime.rank :: runtime.world_size]
    files = {name: marker.files[name] for name in names}
    runtime.together(lambda: while_others_wait(lambda: verify_files(folder, files)))
    return Checkpoint(folder, marker)


def load_tensors(folder: Path, tensors: Tensors) -> None:
    """Fills ``tensors`` in place from ``folder``, whatever plan and number of ranks wrote it.

    Raises DataError naming every tensor that it lacks or holds in another size.
    """
    reader = TensorReader(folder)
    stored = reader.read_metadata().state_dict_metadata
    problems = []
    for name, tensor in tensors.items():
        entry = stored.get(name)
        if not isinstance(entry, TensorStorageMetadata):
            problems.append(f"{name} is not in it")
        elif entry.size != tensor.size():
            problems.append(
                f"{name} has size {tuple(entry.size)} in it, the model wants {tuple(tensor.size())}"
            )
    if problems:
        raise DataError(
            f"checkpoint {folder} is of another model or optimizer: give the settings that it was "
            f"saved with (config.yaml has them), or start a new run\n{bullets(problems, 8)}"
        )
    load(tensors, storage_reader=reader)


def find_checkpoint(resume: str, output: str | None, runtime: Runtime) -> Checkpoint | None:
    """The checkpoint that ``resume`` names, verified; None to start afresh.

    ``resume=auto``: the newest in the run folder that is whole, saying which ones are not. A path: that one,
    or the newest of that run folder. Raises DlrmError where a named one cannot be used.
    """
    if resume == "none":
        return None
    if resume == "auto":
        folders = list_checkpoints(Path(output or "") / "checkpoints")
        for folder in folders:
            try:
                return open_checkpoint(folder, runtime)
            except DlrmError as error:
                logger.warning("%s\ngoing back to the checkpoint before it", error)
        if folders:
            logger.warning("no checkpoint of %s is whole: starting afresh", output)
        return None
    folder = Path(resume)
    if checkpoints := list_checkpoints(folder / "checkpoints"):
        folder = checkpoints[0]
    return open_checkpoint(folder, runtime)


NO_OPTIMIZER = SparseSettings(kind="sgd", lr=1.0)
"""SGD keeps no state, and is fused on every device: a model that is only read needs the memory of its weights."""


def open_trained(path: Path, runtime: Runtime, which: str = "newest", ema: bool = False) -> TrainedModel:
    """Verifies the checkpoint at ``path`` and reads what it tells. Raises DlrmError on every rank.

    In a run folder: its newest, or with ``which="best"`` the one with the highest AUC on val. ``ema``: with the average
    of its dense weights.
    """
    folder = runtime.together(lambda: choose_checkpoint(path, which))
    marker = open_checkpoint(folder, runtime).marker
    trained = describe_trained(folder, marker, EMA if ema else MODEL)
    if ema and not keeps_ema(marker.config):
        raise ConfigError(
            [
                f"ema=true: {folder} has no average of its dense weights: leave ema=true out, or train with "
                "optimizer.dense.ema_decay=0.999"
            ]
        )
    return trained


def load_trained(
    trained: TrainedModel,
    sharding: ShardingConfig,
    topology: TopologyConfig,
    batch_size: int,
    runtime: Runtime,
) -> DistributedModelParallel:
    """The sharded model with its weights, ready for ``evaluate``; ``batch_size`` rows a rank are planned for."""
    tables = [replace(table, optimizer={}) for table in trained.tables]
    spec, trainer = replace(trained.spec, tables=tables), trained.trainer
    rows = batch_size * runtime.world_size

    def build() -> DistributedModelParallel:
        set_tf32(trainer.tf32, runtime.device)
        model = install(build_model(spec, runtime.device), runtime.device, trainer.kernels)
        task = ClickTask(model, runtime.device)
        rows_looked_up = rows * spec.config.ensemble_size
        plan = plan_model(task, tables, NO_OPTIMIZER, sharding, topology, rows_looked_up, runtime)
        return shard_model(task, plan, spec, sharding.collectives, runtime)

    model = runtime.together(build)
    runtime.together(lambda: load_tensors(trained.folder, collect_weights(model, trained.dense)))
    return model
