"""Rules for continuing a run and for beginning one with another run's weights.

Nothing here waits for torch: a run that does not fit is refused before any work.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from pathlib import Path

from dlrm_app.config.optimizer import OptimizerConfig
from dlrm_app.config.saved import read_saved_config
from dlrm_app.config.schema import is_section, known_keys, type_of
from dlrm_app.config.train import ModelConfig, TrainConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import ConfigError, DataError, refuse_if
from dlrm_app.loader.batch_order import enough_lanes
from dlrm_app.runs.checkpoint.marker import (
    Checkpoint,
    TrainedModel,
    check_columns,
    describe_trained,
    read_marker,
)
from dlrm_app.runs.checkpoint.names import choose_checkpoint
from dlrm_app.tables.sparse_optimizers import optimizer_kinds
from dlrm_app.tables.specs import Table, in_order
from dlrm_app.text import as_typed, listed

logger = logging.getLogger(__name__)
FIXED_KEYS = (
    "data.lanes",
    "data.shuffle",
    "trainer.seed",
    "trainer.global_batch_size",
    *(f"model.{field.name}" for field in fields(ModelConfig)),
)
"""Keys that decide which rows make which batch, and what the model computes: a resumed run keeps them."""


def with_lanes(config: TrainConfig, checkpoint: Checkpoint | None, num_ranks: int) -> TrainConfig:
    """``config`` with a number in data.lanes: its own, or that of the resumed run, or enough for the ranks.

    Raises ConfigError if the ranks do not divide the lanes of the resumed run.
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
                    f"{num_ranks} ranks do not divide data.lanes, which is {lanes} in the run that {checkpoint.folder} "
                    f"belongs to: use {', '.join(fitting[:-1])} or {fitting[-1]} ranks, or start a new run"
                ]
            )
    return replace(config, data=replace(config.data, lanes=lanes))


def check_resumable(
    checkpoint: Checkpoint, config: TrainConfig, manifest: Manifest, tables: Sequence[Table]
) -> tuple[TrainedModel, TrainConfig]:
    """The model and the configuration of the checkpoint's run.

    Raises an error naming all that makes the run under ``config``, with ``tables``, another one.
    """
    folder = checkpoint.folder
    saved = read_saved_config(checkpoint.marker.config, folder)
    if checkpoint.marker.dataset != manifest.fingerprint():
        raise DataError(
            f"checkpoint {folder} was trained on another dataset ({saved.data.path}) than "
            f"{config.data.path}: name that one, or start a new run with resume=none and another output"
        )
    former = describe_trained(folder, checkpoint.marker)
    keys = list(FIXED_KEYS)
    begun, typed = (each.warm_start.checkpoint for each in (saved, config))
    if typed is not None and (begun is None or Path(typed).resolve() != Path(begun).resolve()):
        keys.append("warm_start.checkpoint")
    problems = [*_other_values(keys, config, saved, folder), *_table_problems(former, tables)]
    refuse_if([f"{problem}, or start a new run" for problem in problems])
    return former, saved


_CHOSEN = ("model.", "tables.", "optimizer.", "schedule.", "trainer.global_batch_size", "trainer.calibrate")
"""Keys that a recipe sets, or how they begin: where none is typed, those of the run whose weights a run begins with."""
_RULE = "warm_start.checkpoint: a run begins with the weights of its own model alone; what is not typed of model, tables and optimizer is that run's"
_FREE = ("initial_bias", "dropout", "bottom_dropout")
"""Keys of the model that its weights do not depend on."""


def read_former(path: str) -> tuple[TrainedModel, TrainConfig]:
    """The newest checkpoint of a run folder, or the one that is named, and its configuration. Raises DataError."""
    folder = choose_checkpoint(Path(path), "newest")
    marker = read_marker(folder)
    return describe_trained(folder, marker), read_saved_config(marker.config, folder)


def check_warm_start(config: TrainConfig, manifest: Manifest, tables: Sequence[Table]) -> TrainedModel:
    """The checkpoint that ``config`` names. Raises DlrmError for another model, and for rows whose ids mean something else."""
    assert config.warm_start.checkpoint is not None
    former, then = read_former(config.warm_start.checkpoint)
    check_columns(former, manifest)  # first: other ids mean tables of other sizes too
    keys = [f"model.{each.name}" for each in fields(ModelConfig) if each.name not in _FREE]
    problems = [*_other_values(keys, config, then, former.folder), *_table_problems(former, tables)]
    if config.warm_start.optimizer and not problems:
        problems = _optimizer_problems(former, then.optimizer, config.optimizer, tables)
    if problems:
        raise ConfigError([*problems, _RULE])
    return former


def _other_values(keys: Sequence[str], config: TrainConfig, saved: TrainConfig, folder: Path) -> list[str]:
    """The keys in which ``config`` is not as ``saved``, the configuration of the checkpoint ``folder``."""
    return [
        f"{key} is {now}, in {folder} {then}: give {key}={as_typed(then)}"
        for key in keys
        if (now := attrgetter(key)(config)) != (then := attrgetter(key)(saved))
    ]


def _table_problems(former: TrainedModel, tables: Sequence[Table]) -> list[str]:
    ordered = in_order(tables, former.order)
    known, given = ({table.name: table for table in each} for each in (former.tables, ordered))
    if lone := sorted(known.keys() ^ given.keys()):
        return [f"tables: {listed(lone)} are not in both, this run and {former.folder}"]
    return [
        f"tables: {key} of {name} is {as_typed(now, str)}, in {former.folder} {as_typed(then, str)}: "
        f"give {key}={as_typed(then, str)}"
        for key in ("rows", "dim", "pooling", "features")
        for name in given
        if (now := getattr(given[name], key)) != (then := getattr(known[name], key))
    ]


def _optimizer_problems(
    former: TrainedModel, before: OptimizerConfig, after: OptimizerConfig, tables: Sequence[Table]
) -> list[str]:
    then = {"the dense part": before.dense.kind, **optimizer_kinds(former.tables, before.sparse)}
    now = {"the dense part": after.dense.kind, **optimizer_kinds(tables, after.sparse)}
    return [
        f"the optimizer of {name} is {kind}, in {former.folder} {then[name]}: take that one, or let every optimizer begin again "
        "with warm_start.optimizer=false"
        for name, kind in now.items()
        if kind != then[name]
    ][:1]


def settings_of(config: TrainConfig, exclude: Collection[str] = ()) -> list[str]:
    """The settings by which ``config`` chose model, tables, optimizer, schedule and batch, as Hydra takes them.

    ``exclude``: groups and keys that are chosen again.
    """
    keys = [key for key in known_keys(TrainConfig) if key.startswith(_CHOSEN)]
    return [
        f"{key}={as_typed(attrgetter(key)(config))}"
        for key in keys
        if not is_section(type_of(key, TrainConfig)) and not {key.partition(".")[0], key} & {*exclude}
    ]
