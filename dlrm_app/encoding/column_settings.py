"""The settings that decide the columns, and their problems: values out of range, unknown columns, other encodings."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlrm_app.config.datasets import AUTO, DenseConfig, EncodingConfig
from dlrm_app.config.values import VectorType
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

Wanted = str | list[str] | None
"""A choice of columns: null, auto, all, one name or a list of names."""
_RawColumn = tuple[str, tuple[object, ...]]
"""(name of a column of the log, everything that its values depend on)."""


@dataclass(frozen=True)
class ColumnSettings:
    """The settings that decide the columns.

    ``sizes``: multi_hot.sizes.
    ``has_clicks``: True if training rows have labels.
    ``vector_type``: vectors.dtype.
    """

    encoding: EncodingConfig
    dense: DenseConfig
    sizes: object
    keep: Sequence[str]
    has_clicks: bool
    vector_type: VectorType = "fp16"


def setting_problems(settings: ColumnSettings, spec: Spec, base: Manifest | None) -> list[Problem]:
    """Problems of the settings by column. ``base``: the dataset whose encodings are used or grown."""
    problems = _encoding_problems(settings.encoding, settings.dense, settings.sizes, spec, base)
    if settings.dense.target_columns not in (None, AUTO) and not settings.has_clicks:
        cure = "give a labelled input.train, or leave it out"
        problems.append(Problem("dense.target_columns", "needs the clicks of training rows", cure))
    keys = [column.name for column in spec.sparse if column.separator is None]
    ignored = [column.name for column in spec.columns if column.role == "ignore"]
    names = [column.name for column in (*spec.kept, *spec.times)] + keys
    return problems + [
        Problem(
            f"keep={name}",
            "is not a column of the log that is sparse with one value, a time, or ignored",
            f"name one of {listed([*names, *ignored], 12)}",
        )
        for name in settings.keep
        if name not in names
    ]


def _encoding_problems(
    encoding: EncodingConfig, dense: DenseConfig, sizes: object, spec: Spec, base: Manifest | None
) -> list[Problem]:
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
    open_names = dense_names if base is None else new_numbers(base, spec)
    problems += _mapping_problems("dense.transform", dense.transform, dense_names, open_names)
    problems += _mapping_problems("dense.bucket_boundaries", dense.bucket_boundaries, dense_names, buckets)
    if base is not None:
        problems += _base_problems(base, encoding, dense, sizes, spec)
        return problems or (_growth_problems(base, encoding, spec) if encoding.grow_from else [])
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
        cure = "give one the role sparse, or set dense.bucket_columns=all"
        problems.append(Problem("dataset.columns", "has no column that would have a table", cure))
    return problems + _name_problems("dense.target_columns", dense.target_columns, one_hot)


def _number_problems(
    key: str, value: object, names: Sequence[str], low: int, high: int, *, needs_all: bool
) -> list[Problem]:
    """Problems of a setting that is one number for all columns, a list in their order, or a mapping."""
    if problems := _mapping_problems(key, value, names, names if needs_all else (), "sparse"):
        return problems
    if isinstance(value, list) and len(value) != len(names):
        rule = f"has {len(value)} numbers, the dataset has {len(names)} sparse columns"
        return [Problem(key, rule, "give one for each")]
    is_one = not isinstance(value, list | Mapping)
    each = {"": value} if is_one else dict(zip(names, per_column(value, names), strict=True))
    return [
        Problem(f"{key}{name and f'.{name}'}", f"must be a whole number from {low} to {high}", value=number)
        for name, number in each.items()
        if (number is not None or (needs_all and not is_one))
        and not (type(number) is int and low <= number <= high)
    ]


def _mapping_problems(
    key: str, value: object, names: Sequence[str], needed: Sequence[str], role: str = "dense"
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


def _name_problems(key: str, wanted: Wanted, names: Sequence[str]) -> list[Problem]:
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
        rule = "must hold lists of columns, such as [[item, last_items]]"
        return [Problem("encoding.shared", rule, value=groups)]
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


def _growth_problems(base: Manifest, encoding: EncodingConfig, spec: Spec) -> list[Problem]:
    key, names = f"encoding.grow_from={base.path}", [column.name for column in spec.sparse]
    vocabularies = [column for column in base.sparse if column.encoding["kind"] == "vocab"]
    grown = [column for column in vocabularies if "vectors" not in column.encoding]
    if not vocabularies:
        rule = "has no vocabulary that could grow, because its ids are hashes"
        return [Problem(key, rule, f"give encoding=from_dataset encoding.path={base.path}")]
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
    if encoding.day is not None and base.lineage is not None:
        before, day = base.lineage.day, str(encoding.day)
        if not are_comparable(day, before) or day_number(day) <= day_number(before):
            cure = f"give {day_after(before)}, or a later one"
            problems.append(Problem(f"encoding.day={day}", f"must come after day {before} of {key}", cure))
    return problems


def _base_problems(
    base: Manifest, encoding: EncodingConfig, dense: DenseConfig, sizes: object, spec: Spec
) -> list[Problem]:
    key = "encoding.path" if encoding.grow_from is None else "encoding.grow_from"
    if base.dataset != spec.name:
        logger.warning(
            f"the ids of {base.path} were made from dataset={base.dataset}, this is dataset={spec.name}: "
            "each column takes the ids of the column of the same name there"
        )
    folder = f"{key}={base.path}"
    return [
        *_typed_problems(key, dense, sizes),
        *_column_problems(folder, base, spec),
        *_label_problems(folder, base, spec),
    ]


def _typed_problems(key: str, dense: DenseConfig, sizes: object) -> list[Problem]:
    """Problems of typed settings that the dataset named by setting ``key`` decides."""
    settings = {
        "multi_hot.sizes": sizes,
        "dense.bucket_columns": dense.bucket_columns,
        "dense.target_columns": dense.target_columns,
    }
    return [
        Problem(setting, f"comes with the dataset at {key}", "leave it out")
        for setting, value in settings.items()
        if value not in (None, AUTO)
    ]


def _column_problems(folder: str, base: Manifest, spec: Spec) -> list[Problem]:
    """A problem if ``spec`` lacks a raw column of ``base``, or differs in their order or in how one is made."""
    base_columns = _raw_columns(base)
    weights = {column.weights_of: column.name for column in spec.element_weights}
    spec_columns: list[_RawColumn] = [(c.name, (c.derivation,)) for c in spec.dense]
    spec_columns += [
        (c.name, (c.kind, c.separator is not None, c.derivation, weights.get(c.name))) for c in spec.sparse
    ]
    spec_columns += [(c.name, (c.kind, c.separator is not None, c.derivation, None)) for c in spec.looked_up]
    spec_columns += [(column.name, (column.size,)) for column in spec.vectors]
    names = {column.name for column in base.dense} | {column.name for column in base.sparse}
    names |= {column.name for column in base.vectors}
    if [column for column in spec_columns if column[0] in names] == base_columns:
        return []
    made_names = names - {column[0] for column in base_columns}
    differing = [column[0] for column in base_columns if column not in spec_columns]
    differing += [column[0] for column in spec_columns if column[0] in made_names]
    rule = f"has other columns than dataset={spec.name} ({listed(differing) or 'in another order'})"
    cure = f"give the dataset= it was made with ({base.dataset}), or that with more columns"
    return [Problem(folder, rule, cure)]


def _raw_columns(base: Manifest) -> list[_RawColumn]:
    """The columns of ``base`` that its format describes, in order: all except buckets and target columns."""
    columns: list[_RawColumn] = [
        (c.name, (c.transform.get("derived"),)) for c in base.dense if not is_target(c)
    ]
    for c in base.sparse:
        if "raw" in c.encoding:
            is_list = c.multi_hot and "multi_hot" not in c.encoding
            columns.append((c.name, (c.encoding["raw"], is_list, c.encoding.get("derived"), c.weights)))
    return columns + [(c.name, (c.size,)) for c in base.vectors]


def _label_problems(folder: str, base: Manifest, spec: Spec) -> list[Problem]:
    """A problem if the target columns of ``base`` were made from another label."""
    if not any(map(is_target, base.dense)):
        return []
    label = Label(spec.label) if spec.label is not None else None
    labels = other_labels(label, describe_columns(base))
    if labels is None:
        return []
    given, earlier = labels
    rule = f"has target columns that are shares of {earlier.text}, the label here is {given.text}"
    cure = f"give dataset.label={earlier.name}, or a dataset of rows with the label {given.text}"
    return [Problem(folder, rule, cure)]


def new_columns(base: Manifest, spec: Spec) -> list[str]:
    """The sparse columns of ``spec`` that the dataset ``base`` lacks."""
    base_names = {column.name for column in base.sparse}
    return [column.name for column in spec.sparse if column.name not in base_names]


def new_numbers(base: Manifest, spec: Spec) -> list[str]:
    """The dense columns of ``spec`` that the dataset ``base`` lacks, without other models' scores."""
    base_names = {column.name for column in base.dense}
    return [column.name for column in spec.numbers if column.name not in base_names]


def per_column(value: object, names: Sequence[str]) -> list[Any]:
    """The value for each of ``names``. ``value`` may be one for all, a list in their order, or a mapping."""
    if isinstance(value, Mapping):
        return [value.get(name) for name in names]
    return list(value) if isinstance(value, list) else [value] * len(names)


def chosen(wanted: Wanted, names: Sequence[str]) -> list[str]:
    """The columns that ``wanted`` names; none for auto, whose choice is still open."""
    if wanted is None or wanted in (AUTO, "all"):
        return list(names) if wanted == "all" else []
    return list(wanted) if isinstance(wanted, list) else [wanted]


def bucket_name(name: str) -> str:
    """The name of the sparse column with the buckets of dense column ``name``."""
    return f"{name}_bucket"
