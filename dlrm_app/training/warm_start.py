"""Rules for resuming a run or starting one from another run's weights.

Nothing here imports torch: a run that does not fit is refused before any work.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from operator import attrgetter
from pathlib import Path

from dlrm_app.config.optimizer import OptimizerConfig
from dlrm_app.config.train import ModelConfig, TrainConfig, read_saved_config
from dlrm_app.dataset.columns import refuse_other_columns
from dlrm_app.dataset.label import LabelRule, as_written
from dlrm_app.dataset.manifest import LearntLabel, Manifest
from dlrm_app.errors import ConfigError, DataError, Problem, refuse_if
from dlrm_app.loader.batch_order import enough_lanes
from dlrm_app.runs.checkpoint.marker import Checkpoint, read_marker
from dlrm_app.runs.checkpoint.names import hold_checkpoint
from dlrm_app.runs.checkpoint.trained import TrainedModel, describe_trained
from dlrm_app.tables.sparse_optimizers import optimizer_kinds
from dlrm_app.tables.table import Table, features_of, in_order
from dlrm_app.text import listed
from dlrm_app.typed import as_typed, setting

FIXED_KEYS = (
    "data.lanes",
    "data.shuffle",
    "trainer.seed",
    "trainer.global_batch_size",
    *(f"model.{field.name}" for field in fields(ModelConfig)),
)
"""Keys that decide which rows form a batch and what the model computes. A resumed run must keep them."""


def choose_lanes(given: int | None, checkpoint: Checkpoint | None, num_ranks: int) -> int:
    """Chooses data.lanes: the ``given`` number, or that of the resumed run, or enough for the ranks.

    Raises ConfigError if the ranks do not divide the lanes of the resumed run.
    """
    if given is not None:
        return given
    lanes = enough_lanes(num_ranks)
    if checkpoint is not None:
        lanes = read_saved_config(checkpoint.marker.config, checkpoint.folder).data.lanes or lanes
        if lanes % num_ranks:
            fitting = [str(n) for n in range(1, lanes + 1) if lanes % n == 0]
            rule = (
                f"of the run that {checkpoint.folder} belongs to is not a multiple of the {num_ranks} ranks"
            )
            cure = f"use {', '.join(fitting[:-1])} or {fitting[-1]} ranks, or start a new run"
            raise ConfigError(Problem(f"data.lanes={lanes}", rule, cure))
    return lanes


def check_resumable(
    checkpoint: Checkpoint, config: TrainConfig, manifest: Manifest, tables: Sequence[Table]
) -> tuple[TrainedModel, TrainConfig]:
    """The model and the configuration of the checkpoint's run.

    Raises an error naming every difference between that run and the one of ``config`` and ``tables``.
    """
    folder = checkpoint.folder
    saved = read_saved_config(checkpoint.marker.config, folder)
    if checkpoint.marker.dataset != manifest.fingerprint():
        rule = (
            f"was trained on another dataset ({saved.data.path} as it was then) than "
            f"{config.data.path} is now"
        )
        cure = "name that one, or start a new run with resume=none and another output"
        raise DataError(Problem(str(folder), rule, cure))
    previous = describe_trained(folder, checkpoint.marker)
    keys = list(FIXED_KEYS)
    begun, typed = (each.warm_start.checkpoint for each in (saved, config))
    if typed is not None and (begun is None or Path(typed).resolve() != Path(begun).resolve()):
        keys.append("warm_start.checkpoint")
    problems = [*other_values(keys, config, saved, folder), *_changed_tables(previous, tables)]
    refuse_if([problem.also("or start a new run") for problem in problems])
    return previous, saved


def other_values(keys: Sequence[str], config: TrainConfig, saved: TrainConfig, folder: Path) -> list[Problem]:
    """Problems: the ``keys`` in which ``config`` differs from ``saved``, that of the checkpoint ``folder``."""
    return [
        Problem(key, f"is {now}, in {folder} {then}", f"give {key}={as_typed(then)}")
        for key in keys
        if (now := attrgetter(key)(config)) != (then := attrgetter(key)(saved))
    ]


def _changed_tables(previous: TrainedModel, tables: Sequence[Table]) -> list[Problem]:
    ordered = in_order(tables, previous.order)
    if unmatched := sorted({table.name for table in previous.tables} ^ {table.name for table in ordered}):
        rule = f"differ: {listed(unmatched)} are not in both, this run and {previous.folder}"
        return [Problem("tables", rule)]
    return other_tables(("rows", "dim", "pooling", "features"), ordered, previous)


def other_tables(keys: Sequence[str], tables: Sequence[Table], previous: TrainedModel) -> list[Problem]:
    """Problems: the ``keys`` in which ``tables`` differ from the tables of the same name in ``previous``."""
    earlier = {table.name: table for table in previous.tables}
    return [
        Problem(
            f"tables.{table.name}.{key}",
            f"is {as_typed(now, str)}, in {previous.folder} {as_typed(then, str)}",
            f"give {key}={as_typed(then, str)}",
        )
        for key in keys
        for table in tables
        if table.name in earlier
        and (now := getattr(table, key)) != (then := getattr(earlier[table.name], key))
    ]


_HINT = Problem(
    "warm_start.checkpoint", "gives its values to all keys of model, tables and optimizer that are not typed"
)
_FREE_KEYS = ("initial_bias", "dropout", "bottom_dropout")
"""Keys of the model that do not change the shape or meaning of its weights."""
_DECISIVE_KEYS = ("kind", "ensemble_size")
"""Keys of the model that decide the meaning of its weights."""


def read_previous(path: Path) -> tuple[TrainedModel, TrainConfig]:
    """The newest checkpoint of a run folder, or the named checkpoint, and its configuration. Raises DataError."""
    folder, held = hold_checkpoint(path, "newest")
    marker = read_marker(folder)
    return replace(describe_trained(folder, marker), held=held), read_saved_config(marker.config, folder)


def check_warm_start(
    path: Path, config: TrainConfig, manifest: Manifest, tables: Sequence[Table]
) -> TrainedModel:
    """The checkpoint ``path`` or, of a run folder, its newest.

    Raises DlrmError for differences that warm_start.allow does not list, and for rows whose ids or values have another
    meaning."""
    previous, then = read_previous(path)
    allow = config.warm_start.allow
    _check_columns(previous, manifest, tables, allow)  # first: other ids also mean other table sizes
    problems = [
        *column_problems(previous, _read(tables, manifest), _dense_names(manifest), manifest.labels, allow),
        *_model_problems(config, then, previous.folder),
        *_table_problems(previous, tables),
    ]
    if config.warm_start.optimizer and not problems:
        problems = _optimizer_problems(previous, then.optimizer, config.optimizer, tables)
    if problems:
        raise ConfigError(*problems, _HINT)
    return previous


def column_problems(
    previous: TrainedModel,
    features: Sequence[str],
    dense: Sequence[str],
    labels: Sequence[LearntLabel],
    allow: Sequence[str],
) -> list[Problem]:
    """Problems: columns and labels that only one of ``previous`` and a run on these reads, unless ``allow`` has them.

    ``features``: the sparse ones, then the columns of vectors in each row.
    """
    then = [*previous.features, *previous.spec.vectors]
    return [
        *_changed_columns("features", then, features, previous.folder, allow),
        *_changed_columns("dense", previous.dense_names, dense, previous.folder, allow),
        *_label_problems(previous, labels, allow),
    ]


def _read(tables: Sequence[Table], manifest: Manifest) -> list[str]:
    """The features that ``tables`` read, and the columns of vectors in each row."""
    return features_of(tables) + [column.name for column in manifest.vectors]


def _dense_names(manifest: Manifest) -> list[str]:
    return [column.name for column in manifest.dense]


def _check_columns(
    previous: TrainedModel, manifest: Manifest, tables: Sequence[Table], allow: Sequence[str]
) -> None:
    """Raises DataError naming every column of both runs whose ids, values or labels have another meaning now."""
    given, known = _dense_names(manifest), {column["name"]: column for column in previous.columns["dense"]}
    vectors = {column["name"]: column for column in previous.columns.get("vectors", [])}
    common = {
        **previous.columns,
        "dense": [known[name] for name in given if name in known],
        "vectors": [vectors[c.name] for c in manifest.vectors if c.name in vectors],
    }
    both = replace(
        manifest,
        dense=[column for column in manifest.dense if column.name in known],
        vectors=[column for column in manifest.vectors if column.name in vectors],
    )
    features = [name for name in previous.features if name in features_of(tables)]
    encoding = setting("encoding.path", previous.data_path)
    label = LabelRule("label" in allow, f"warm_start.allow={as_typed([*allow, 'label'], str)}")
    refuse_other_columns(common, both, features, previous.folder, encoding, ("newer",), label)


def _changed_columns(
    kind: str, then: Sequence[str], now: Sequence[str], folder: Path, allow: Sequence[str]
) -> list[Problem]:
    """Problems: columns that only one of the two runs reads, unless ``allow`` has their ``kind``."""
    gone, new = ([name for name in one if name not in other] for one, other in ((then, now), (now, then)))
    if kind in allow or not (gone or new):
        return []
    said = [f"{listed(new)} new" if new else "", f"{listed(gone)} left out" if gone else ""]
    cure = f"begin with what both have by warm_start.allow={as_typed([*allow, kind], str)}"
    return [Problem(kind, f"differ from {folder}: {' and '.join(filter(None, said))}", cure)]


def _label_problems(
    previous: TrainedModel, labels: Sequence[LearntLabel], allow: Sequence[str]
) -> list[Problem]:
    """Problems: other labels that only one of the two runs learns, or in another order, unless ``allow`` has them.

    Top MLPs are matched by the places of their labels.
    """
    then, now = ([(each.name, each.given) for each in its[1:]] for its in (previous.spec.labels, labels))
    if then == now or "label" in allow:
        return []
    texts = [as_typed(as_written(its[1:]), str) for its in (labels, previous.spec.labels)]
    rule = f"has {texts[0]} beside the main label, {previous.folder} has {texts[1]}"
    cure = (
        f"begin with the top MLPs of the same places by warm_start.allow={as_typed([*allow, 'label'], str)}"
    )
    return [Problem("dataset.labels", rule, cure)]


def _model_problems(config: TrainConfig, then: TrainConfig, folder: Path) -> list[Problem]:
    """Problems: keys of the model that differ. With ``layers`` allowed, those that change dense layers' shapes may."""
    allow = config.warm_start.allow
    problems = other_values([f"model.{key}" for key in _DECISIVE_KEYS], config, then, folder)
    if "layers" in allow:
        return problems
    free = {field.name for field in fields(ModelConfig)} - {*_FREE_KEYS, *_DECISIVE_KEYS}
    keys = [f"model.{field.name}" for field in fields(ModelConfig) if field.name in free]
    cure = f"or draw what has another shape by warm_start.allow={as_typed([*allow, 'layers'], str)}"
    return problems + [problem.also(cure) for problem in other_values(keys, config, then, folder)]


def _table_problems(previous: TrainedModel, tables: Sequence[Table]) -> list[Problem]:
    """Problems: tables and features that would read other rows than before."""
    readers = {feature: table.name for table in previous.tables for feature in table.features}
    earlier = {table.name: table for table in previous.tables}
    problems, where = other_tables(("dim", "pooling"), tables, previous), f"in {previous.folder}"
    for table in tables:
        problems += [
            Problem(
                f"tables.{table.name}",
                f"reads {feature}, which {where} is read by {readers[feature]}",
                "let it read that one",
            )
            for feature in table.features
            if readers.get(feature, table.name) != table.name
        ]
        then = earlier.get(table.name, table)
        if table.rows < then.rows:
            rule = f"has {table.rows} rows, {where} {then.rows}"
            problems.append(Problem(f"tables.{table.name}", rule, f"give rows={then.rows} or more"))
        if not {*table.features} & {*then.features}:
            rule = (
                f"reads {listed(table.features)}, {where} {listed(then.features)}, so its rows belong to "
                "other values"
            )
            problems.append(Problem(f"tables.{table.name}", rule, "give the table another name"))
    return problems


def _optimizer_problems(
    previous: TrainedModel, before: OptimizerConfig, after: OptimizerConfig, tables: Sequence[Table]
) -> list[Problem]:
    then = {"the dense part": before.dense.kind, **optimizer_kinds(previous.tables, before.sparse)}
    now = {"the dense part": after.dense.kind, **optimizer_kinds(tables, after.sparse)}
    return [
        Problem(
            "optimizer",
            f"of {name} is {kind}, in {previous.folder} {then[name]}",
            "take that one, or let every optimizer begin again with warm_start.optimizer=false",
        )
        for name, kind in now.items()
        if kind != then.get(name, kind)
    ][:1]
