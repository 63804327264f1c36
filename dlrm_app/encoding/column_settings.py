"""The settings that decide the columns, and their problems: values out of range, unknown columns, other encodings."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlrm_app.config.datasets import AUTO, DenseConfig, EncodingConfig
from dlrm_app.dataset.columns import describe_columns
from dlrm_app.dataset.label import Label, other_labels
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.dates import are_comparable, day_after, day_number
from dlrm_app.encoding.dense import is_target
from dlrm_app.encoding.sparse import FIRST_ID
from dlrm_app.errors import Problem
from dlrm_app.logs.spec import Spec
from dlrm_app.text import listed

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ColumnSettings:
    """The settings that decide the columns. ``sizes``: multi_hot.sizes; ``has_clicks``: training rows have labels."""

    encoding: EncodingConfig
    dense: DenseConfig
    sizes: Any
    keep: Sequence[str]
    has_clicks: bool


def setting_problems(settings: ColumnSettings, spec: Spec, known: Manifest | None) -> list[Problem]:
    """All problems of the settings by column. ``known``: the dataset whose encodings are used or grown."""
    problems = _encoding_problems(settings.encoding, settings.dense, settings.sizes, spec, known)
    if settings.dense.target_columns not in (None, AUTO) and not settings.has_clicks:
        problems.append(
            Problem(
                "dense.target_columns",
                "needs the clicks of training rows",
                "give a labelled input.train, or leave it out",
            )
        )
    one_hot = [column.name for column in spec.sparse if column.separator is None]
    return problems + [
        Problem(f"keep={name}", "is no sparse column of one value", f"name one of {listed(one_hot, 12)}")
        for name in settings.keep
        if name not in one_hot
    ]


def _encoding_problems(
    encoding: EncodingConfig, dense: DenseConfig, sizes: Any, spec: Spec, known: Manifest | None
) -> list[Problem]:
    """Problems of encoding, dense and multi_hot.sizes."""
    names, dense_names = [column.name for column in spec.sparse], [column.name for column in spec.numbers]
    numbers = {  # key: (value, least number, greatest number)
        "encoding.num_embeddings": (encoding.num_embeddings, 2, 2**31 - 1),
        "encoding.min_count": (encoding.min_count, 1, 1 << 62),
        "encoding.top_k": (encoding.top_k, 1, 2**31 - 1),
        "encoding.capacity": (encoding.capacity, FIRST_ID + 1, 2**31 - 1),
        "multi_hot.sizes": (sizes, 1, 10_000),
    }
    problems = []
    for key, (value, low, high) in numbers.items():
        needs_all = key == "encoding.num_embeddings" and encoding.kind == "hash"
        problems += _number_problems(key, value, names, low, high, needs_all=needs_all)
    problems += [] if problems else _shared_problems(encoding, spec)
    problems += _name_problems("dense.bucket_columns", dense.bucket_columns, dense_names)
    buckets = dense_names if dense.bucket_columns == AUTO else chosen(dense.bucket_columns, dense_names)
    open_names = dense_names if known is None else new_numbers(known, spec)
    problems += _mapping_problems("dense.transform", dense.transform, dense_names, open_names)
    problems += _mapping_problems("dense.bucket_boundaries", dense.bucket_boundaries, dense_names, buckets)
    if known is not None:
        problems += _known_problems(known, encoding, dense, sizes, spec)
        return problems or (_growth_problems(known, encoding, spec) if encoding.grow_from else [])
    if problems:
        return problems
    is_wide = dict(zip(names, (size not in (None, 1) for size in per_column(sizes, names)), strict=True))
    lists = {column.name for column in spec.sparse if column.separator is not None}
    problems = [
        Problem(f"multi_hot.sizes.{name}", "must be 1 or null, because its values are lists already")
        for name in names
        if is_wide[name] and name in lists
    ]
    one_hot = [name for name in names if not is_wide[name] and name not in lists]
    one_hot += map(bucket_name, buckets)
    if not names and not buckets:
        problems.append(
            Problem(
                "dataset.columns",
                "has no column that would have a table",
                "give one the role sparse, or set dense.bucket_columns=all",
            )
        )
    return problems + _name_problems("dense.target_columns", dense.target_columns, one_hot)


def _number_problems(
    key: str, value: Any, names: Sequence[str], low: int, high: int, *, needs_all: bool
) -> list[Problem]:
    """Problems of a setting that is one number for all columns, a list in their order, or a mapping."""
    if problems := _mapping_problems(key, value, names, names if needs_all else (), "sparse"):
        return problems
    if isinstance(value, list) and len(value) != len(names):
        return [
            Problem(
                key,
                f"has {len(value)} numbers, the dataset has {len(names)} sparse columns",
                "give one for each",
            )
        ]
    is_one = not isinstance(value, list | Mapping)
    each = {"": value} if is_one else dict(zip(names, per_column(value, names), strict=True))
    return [
        Problem(f"{key}{name and f'.{name}'}", f"must be a whole number from {low} to {high}", value=number)
        for name, number in each.items()
        if (number is not None or (needs_all and not is_one))
        and not (type(number) is int and low <= number <= high)
    ]


def _mapping_problems(
    key: str, value: Any, names: Sequence[str], needed: Sequence[str], role: str = "dense"
) -> list[Problem]:
    """Problems of ``value`` if it is a mapping: it may name only ``names`` and must name all of ``needed``."""
    if not isinstance(value, Mapping):
        return []
    unknown = [str(name) for name in value if name not in names]
    lacking = [name for name in needed if name not in value]
    problems = [Problem(key, f"lacks {', '.join(lacking)}")] if lacking else []
    if unknown:
        problems += [
            Problem(key, f"names {', '.join(unknown)}", f"the {role} columns are {', '.join(names)}")
        ]
    return problems


def _name_problems(key: str, wanted: Any, names: Sequence[str]) -> list[Problem]:
    """Problems of ``wanted``, which may be null, auto, all, or a list of ``names`` without duplicates."""
    given = chosen(wanted, names)
    return [
        Problem(
            key,
            f"names {name!r}{('' if name not in names else ' twice')}",
            f"give all or a list of {', '.join(names)}",
        )
        for place, name in enumerate(given)
        if name not in names or name in given[:place]
    ]


def _shared_problems(encoding: EncodingConfig, spec: Spec) -> list[Problem]:
    """Problems of ``encoding.shared``, which may be null, or lists of columns of one kind."""
    groups, names = encoding.shared or [], [column.name for column in spec.sparse]
    if not (isinstance(groups, list) and all(isinstance(group, list) and len(group) > 1 for group in groups)):
        return [
            Problem(
                "encoding.shared", "must hold lists of columns, such as [[item, last_items]]", value=groups
            )
        ]
    if problems := _name_problems("encoding.shared", [name for group in groups for name in group], names):
        return problems
    settings = [per_column(s, names) for s in (encoding.top_k, encoding.min_count, encoding.num_embeddings)]
    way_of = dict(zip(names, zip([c.kind for c in spec.sparse], *settings, strict=True), strict=True))
    return [
        Problem(
            "encoding.shared",
            f"puts {', '.join(group)} together, which differ in kind or encoding.top_k, min_count or "
            "num_embeddings",
            "give them the same",
        )
        for group in groups
        if len({way_of[name] for name in group}) > 1
    ]


def _growth_problems(known: Manifest, encoding: EncodingConfig, spec: Spec) -> list[Problem]:
    """Reasons why the vocabularies of the dataset ``known`` cannot grow according to ``encoding``."""
    key, names = f"encoding.grow_from={known.path}", [column.name for column in spec.sparse]
    grown = [column for column in known.sparse if column.encoding["kind"] == "vocab"]
    if not grown:
        return [
            Problem(
                key,
                "has no vocabulary that could grow, because its ids are hashes",
                f"give encoding=from_dataset encoding.path={known.path}",
            )
        ]
    capacity = dict(zip(names, per_column(encoding.capacity, names), strict=True))
    problems = [
        Problem(
            f"encoding.capacity.{column.name}",
            f"is {most:,}, its table at {key} has {column.num_embeddings:,} rows already, and ids never move",
            "give at least that",
        )
        for column in grown
        if (most := capacity[column.name]) is not None and most < column.num_embeddings
    ]
    problems += [
        Problem(
            key,
            f"cannot grow by {column.name}, because multi_hot.sizes makes ids of it by the number of "
            "its values",
        )
        for column in grown
        if "multi_hot" in column.encoding
    ]
    if encoding.day is not None and known.lineage is not None:
        before, day = known.lineage.day, str(encoding.day)
        if not are_comparable(day, before) or day_number(day) <= day_number(before):
            problems.append(
                Problem(
                    f"encoding.day={day}",
                    f"must come after day {before} of {key}",
                    f"give {day_after(before)}, or a later one",
                )
            )
    return problems


def _known_problems(
    known: Manifest, encoding: EncodingConfig, dense: DenseConfig, sizes: Any, spec: Spec
) -> list[Problem]:
    """Reasons why the encoding of the dataset ``known`` cannot be used for files of this format."""
    key = "encoding.path" if encoding.grow_from is None else "encoding.grow_from"
    settings = {
        "multi_hot.sizes": sizes,
        "dense.bucket_columns": dense.bucket_columns,
        "dense.target_columns": dense.target_columns,
    }
    problems = [
        Problem(setting, f"comes with the dataset at {key}", "leave it out")
        for setting, value in settings.items()
        if value not in (None, AUTO)
    ]
    if known.dataset != spec.name:
        logger.warning(
            f"the ids of {known.path} were made from dataset={known.dataset}, this is dataset={spec.name}: "
            "each column takes the ids of the column of the same name there"
        )
    there: list[Any] = [(c.name, c.transform.get("derived")) for c in known.dense if not is_target(c)]
    there += [
        (
            *(c.name, c.encoding["raw"], c.multi_hot and "multi_hot" not in c.encoding),
            *(c.encoding.get("derived"), c.weights),
        )
        for c in known.sparse
        if "raw" in c.encoding
    ]
    given: list[Any] = [(c.name, c.derivation) for c in spec.dense]
    weights = {column.weights_of: column.name for column in spec.element_weights}
    given += [
        (c.name, c.kind, c.separator is not None, c.derivation, weights.get(c.name)) for c in spec.sparse
    ]
    raw = {column[0] for column in there}
    made = {column.name for column in known.dense} | {column.name for column in known.sparse}
    if [column for column in given if column[0] in made] != there:
        other = [column[0] for column in there if column not in given]
        other += [column[0] for column in given if column[0] in made - raw]
        problems.append(
            Problem(
                f"{key}={known.path}",
                f"has other columns than dataset={spec.name} ({listed(other) or 'in another order'})",
                f"give the dataset= it was made with ({known.dataset}), or that with more columns",
            )
        )
    label = Label(spec.label) if spec.label is not None else None
    differ = other_labels(label, describe_columns(known)) if any(map(is_target, known.dense)) else None
    if differ:
        given_label, then = differ
        problems.append(
            Problem(
                f"{key}={known.path}",
                f"has target columns that are shares of {then.text}, the label here is {given_label.text}",
                f"give dataset.label={then.name}, or a dataset of rows with the label {given_label.text}",
            )
        )
    return problems


def new_columns(known: Manifest, spec: Spec) -> list[str]:
    """The sparse columns of ``spec`` that the dataset ``known`` lacks."""
    there = {column.name for column in known.sparse}
    return [column.name for column in spec.sparse if column.name not in there]


def new_numbers(known: Manifest, spec: Spec) -> list[str]:
    """The dense columns of ``spec`` that the dataset ``known`` lacks, without other models' scores."""
    there = {column.name for column in known.dense}
    return [column.name for column in spec.numbers if column.name not in there]


def per_column(value: Any, names: Sequence[str]) -> list[Any]:
    """The value for each of ``names``. ``value`` may be one for all, a list in their order, or a mapping."""
    if isinstance(value, Mapping):
        return [value.get(name) for name in names]
    return list(value) if isinstance(value, list) else [value] * len(names)


def chosen(wanted: Any, names: Sequence[str]) -> list[Any]:
    """The columns that ``wanted`` names: none (also for auto), all of ``names``, those of a list, or one."""
    if wanted in (None, AUTO, "all"):
        return list(names) if wanted == "all" else []
    return list(wanted) if isinstance(wanted, list) else [wanted]


def bucket_name(name: str) -> str:
    """The name of the sparse column with the buckets of dense column ``name``."""
    return f"{name}_bucket"
