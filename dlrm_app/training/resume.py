"""Rules for continuing a run and for beginning one with another run's weights.

Nothing here waits for torch: a run that does not fit is refused before any work.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from dlrm_app.config.optimizer import OptimizerConfig
from dlrm_app.config.saved import read_saved_config
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
from dlrm_app.text import listed, quoted

logger = logging.getLogger(__name__)
FIXED_KEYS = (
    ("data", "lanes"),
    ("data", "shuffle"),
    ("trainer", "seed"),
    ("trainer", "global_batch_size"),
    *(("model", field.name) for field in fields(ModelConfig)),
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
        keys.append(("warm_start", "checkpoint"))
    problems = [*_other_values(keys, config, saved, folder), *_table_problems(former, tables)]
    refuse_if([f"{problem}, or start a new run" for problem in problems])
    return former, saved


_SECTIONS = ("model", "tables", "optimizer", "schedule")
_TRAINER_KEYS = ("global_batch_size", "calibrate")
"""Keys that a recipe sets: where none is typed, those of the run whose weights a run begins with."""
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
    keys = [("model", each.name) for each in fields(ModelConfig) if each.name not in _FREE]
    problems = [*_other_values(keys, config, then, former.folder), *_table_problems(former, tables)]
    if config.warm_start.optimizer and not problems:
        problems = _optimizer_problems(former, then.optimizer, config.optimizer, tables)
    if problems:
        raise ConfigError([*problems, _RULE])
    return former


def _other_values(
    keys: Sequence[tuple[str, str]], config: TrainConfig, saved: TrainConfig, folder: Path
) -> list[str]:
    """The (section, key) in which ``config`` is not as ``saved``, the configuration of the checkpoint ``folder``."""
    values = [
        (f"{section}.{key}", getattr(getattr(config, section), key), getattr(getattr(saved, section), key))
        for section, key in keys
    ]
    return [
        f"{key} is {now}, in {folder} {then}: give {key}={_typed(then)}"
        for key, now, then in values
        if now != then
    ]


def _table_problems(former: TrainedModel, tables: Sequence[Table]) -> list[str]:
    ordered = in_order(tables, former.order)
    known, given = ({table.name: table for table in each} for each in (former.tables, ordered))
    if lone := sorted(known.keys() ^ given.keys()):
        return [f"tables: {listed(lone)} are not in both, this run and {former.folder}"]
    return [
        f"tables: {key} of {name} is {_plain(now)}, in {former.folder} {_plain(then)}: give {key}={_plain(then)}"
        for key in ("rows", "dim", "pooling", "features")
        for name in given
        if (now := getattr(given[name], key)) != (then := getattr(known[name], key))
    ]


def _plain(value: Any) -> str:
    return str(value) if isinstance(value, str | int) else f"[{', '.join(value)}]"


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
    leaves = [
        (key, value)
        for section in _SECTIONS
        for key, value in _leaves(config, section)
        if not {section, key} & {*exclude}
    ]
    leaves += [(f"trainer.{key}", getattr(config.trainer, key)) for key in _TRAINER_KEYS]
    return [f"{key}={_typed(value)}" for key, value in leaves]


def _leaves(section: Any, name: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(key, value) of everything below ``section.name``."""
    value = getattr(section, name)
    if not is_dataclass(value):
        yield prefix + name, value
        return
    for each in fields(value):
        yield from _leaves(value, each.name, f"{prefix}{name}.")


def _typed(value: Any) -> str:
    """A value as it is typed."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{_typed(each)}' for key, each in value.items())}}}"
    if isinstance(value, Sequence):
        return f"[{','.join(map(_typed, value))}]"
    return str(value)
