"""Rules for continuing a run.

Nothing here waits for torch: a run that does not fit is refused before any work.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from operator import attrgetter
from pathlib import Path

from dlrm_app.config.saved import read_saved_config
from dlrm_app.config.train import ModelConfig, TrainConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import ConfigError, DataError, refuse_if
from dlrm_app.loader.batch_order import enough_lanes
from dlrm_app.runs.checkpoint.marker import Checkpoint, TrainedModel, describe_trained
from dlrm_app.tables.specs import Table, in_order
from dlrm_app.text import as_typed, listed

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
            f"checkpoint {folder} was trained on another dataset ({saved.data.path} as it was then) than "
            f"{config.data.path} is now: name that one, or start a new run with resume=none and another output"
        )
    former = describe_trained(folder, checkpoint.marker)
    keys = list(FIXED_KEYS)
    begun, typed = (each.warm_start.checkpoint for each in (saved, config))
    if typed is not None and (begun is None or Path(typed).resolve() != Path(begun).resolve()):
        keys.append("warm_start.checkpoint")
    problems = [*other_values(keys, config, saved, folder), *_table_problems(former, tables)]
    refuse_if([f"{problem}, or start a new run" for problem in problems])
    return former, saved


def other_values(keys: Sequence[str], config: TrainConfig, saved: TrainConfig, folder: Path) -> list[str]:
    """The keys in which ``config`` is not as ``saved``, the configuration of the checkpoint ``folder``."""
    return [
        f"{key} is {now}, in {folder} {then}: give {key}={as_typed(then)}"
        for key in keys
        if (now := attrgetter(key)(config)) != (then := attrgetter(key)(saved))
    ]


def _table_problems(former: TrainedModel, tables: Sequence[Table]) -> list[str]:
    ordered = in_order(tables, former.order)
    if lone := sorted({table.name for table in former.tables} ^ {table.name for table in ordered}):
        return [f"tables: {listed(lone)} are not in both, this run and {former.folder}"]
    return other_tables(("rows", "dim", "pooling", "features"), ordered, former)


def other_tables(keys: Sequence[str], tables: Sequence[Table], former: TrainedModel) -> list[str]:
    """The ``keys`` in which those of ``tables`` that ``former`` has too are not as there."""
    known = {table.name: table for table in former.tables}
    return [
        f"tables: {key} of {table.name} is {as_typed(now, str)}, in {former.folder} {as_typed(then, str)}: "
        f"give {key}={as_typed(then, str)}"
        for key in keys
        for table in tables
        if table.name in known and (now := getattr(table, key)) != (then := getattr(known[table.name], key))
    ]
