"""Which checkpoint a run goes on from, and whether it may."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path

from dlrm_app.config.model import ModelConfig
from dlrm_app.config.saved import read_saved_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import ConfigError, DataError, DlrmError, refuse_if
from dlrm_app.loader.batch_order import enough_lanes
from dlrm_app.runs.checkpoint.format import list_checkpoints
from dlrm_app.runs.checkpoint.load import Checkpoint, open_checkpoint
from dlrm_app.tables.specs import Table, resolve_tables
from dlrm_app.text import listed

logger = logging.getLogger(__name__)

FIXED_KEYS = (
    ("data", "lanes"),
    ("data", "shuffle"),
    ("trainer", "seed"),
    ("trainer", "global_batch_size"),
    *(("model", field.name) for field in fields(ModelConfig)),
)
"""Keys that decide which rows make which batch, and what the model computes: a run that goes on keeps them."""


def find_checkpoint(config: TrainConfig, runtime: Runtime) -> Checkpoint | None:
    """The checkpoint that ``resume`` names, verified; None to start afresh.

    ``resume=auto``: the newest in the run folder that is whole, saying which ones are not. A path: that one,
    or the newest of that run folder. Raises DlrmError where a named one cannot be used.
    """
    if config.resume == "none":
        return None
    if config.resume == "auto":
        folders = list_checkpoints(Path(config.output or "") / "checkpoints")
        for folder in folders:
            try:
                return open_checkpoint(folder, runtime)
            except DlrmError as error:
                logger.warning("%s\ngoing back to the checkpoint before it", error)
        if folders:
            logger.warning("no checkpoint of %s is whole: starting afresh", config.output)
        return None
    folder = Path(config.resume)
    if checkpoints := list_checkpoints(folder / "checkpoints"):
        folder = checkpoints[0]
    return open_checkpoint(folder, runtime)


def with_lanes(config: TrainConfig, checkpoint: Checkpoint | None, num_ranks: int) -> TrainConfig:
    """``config`` with a number in data.lanes: its own, or that of the run that goes on, or enough for the ranks.

    Raises ConfigError if the ranks do not divide the lanes of the run that goes on.
    """
    if config.data.lanes is not None:
        return config
    lanes = enough_lanes(num_ranks)
    if checkpoint is not None:
        lanes = read_saved_config(checkpoint.marker.config, checkpoint.folder).data.lanes or lanes
        if lanes % num_ranks:
            fitting = [str(n) for n in range(1, lanes + 1) if lanes % n == 0]
            raise ConfigError(
                [
                    f"{num_ranks} ranks do not divide data.lanes, which is {lanes} in the run that {checkpoint.folder} goes on "
                    f"with: use {', '.join(fitting[:-1])} or {fitting[-1]} ranks, or start a new run"
                ]
            )
    return replace(config, data=replace(config.data, lanes=lanes))


def check_resumable(
    checkpoint: Checkpoint, config: TrainConfig, manifest: Manifest, tables: Sequence[Table]
) -> TrainConfig:
    """The configuration of the checkpoint's run.

    Raises an error naming all that makes the run under ``config``, with ``tables``, another one.
    """
    folder = checkpoint.folder
    saved = read_saved_config(checkpoint.marker.config, folder)
    if checkpoint.marker.dataset != manifest.fingerprint():
        raise DataError(
            f"checkpoint {folder} was trained on another dataset ({saved.data.path}) than "
            f"{config.data.path}: name that one, or start a new run with resume=none and another output"
        )
    then, now = asdict(saved), asdict(config)
    problems = [
        f"{section}.{key} is {now[section][key]}, the run in {folder} has {then[section][key]}: "
        f"give {section}.{key}={then[section][key]}, or start a new run"
        for section, key in FIXED_KEYS
        if then[section][key] != now[section][key]
    ]
    feature_rows = {column.name: column.num_embeddings for column in manifest.sparse}
    poolings = {table.name: table.pooling for table in resolve_tables(saved.tables, feature_rows)}
    other = [table for table in tables if poolings.get(table.name, table.pooling) != table.pooling]
    if other:
        problems.append(
            f"tables: pooling is {other[0].pooling} for {listed([table.name for table in other])}, the run in {folder} "
            f"has {poolings[other[0].name]}: give pooling={poolings[other[0].name]}, or start a new run"
        )
    refuse_if(problems)
    return saved
