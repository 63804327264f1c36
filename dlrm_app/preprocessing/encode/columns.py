"""The columns of the dataset to make: turns the configuration of each into the manifest's terms, and checks it."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dlrm_app.config.datasets import AUTO, DenseConfig, EncodingConfig
from dlrm_app.dataset.columns import describe_columns, is_opinion
from dlrm_app.dataset.label import Label, other_labels
from dlrm_app.dataset.lineage import Ancestor, Growth, Lineage, vocabulary_of
from dlrm_app.dataset.manifest import DenseColumn, Manifest, SparseColumn, read_manifest
from dlrm_app.preprocessing.encode.dense import LOGIT, is_target
from dlrm_app.preprocessing.encode.sparse import FIRST_ID, MISSING_ID
from dlrm_app.preprocessing.read.spec import Spec
from dlrm_app.text import day_after, day_number, is_date, listed

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Encoding:
    """The rules for making ids.

    ``known``: the dataset whose encodings are reused. ``hashed``: the columns whose distinct values are
    counted while rows are encoded (other columns have vocabularies, counted before). ``day``: the day of
    vocabularies that grow.
    """

    known: Manifest | None
    hashed: frozenset[str]
    has_vocabularies: bool
    day: str | None = None

    @property
    def grows_from(self) -> Manifest | None:
        """The known dataset, if its vocabularies will grow."""
        return self.known if self.day is not None else None

    def transform(self, dense: DenseConfig) -> Any:
        """dense.transform, or the transforms of the known dataset if there is one."""
        if self.known is None:
            return dense.transform
        kinds = {c.name: c.transform["kind"] for c in self.known.dense if not is_opinion(c)}
        one = [*set(kinds.values())]
        known = one[0] if len(one) == 1 else kinds or dense.transform
        if dense.transform not in (AUTO, known):
            logger.warning(
                f"dense.transform={dense.transform} is not used: {self.known.path} has {listed(one)}"
            )
        return known


def read_known(config: EncodingConfig) -> Manifest | None:
    """The manifest of the dataset at encoding.path or encoding.grow_from."""
    path = config.path if config.kind == "from_dataset" else config.grow_from
    return read_manifest(Path(path)) if path else None


def read_encoding(config: EncodingConfig, spec: Spec, known: Manifest | None) -> Encoding:
    """The encoding that ``config`` asks for. ``known``: the result of ``read_known``."""
    names = [column.name for column in spec.sparse]
    if known is not None:
        is_hashed = {column.name: column.encoding["kind"] != "vocab" for column in known.sparse}
        hashed = frozenset(n for n in names if config.kind == "from_dataset" or is_hashed.get(n, False))
    else:
        sizes = per_column(config.num_embeddings, names) if config.kind == "vocab" else names
        hashed = frozenset(name for name, size in zip(names, sizes, strict=True) if size is not None)
    day = None if config.day is None else str(config.day)
    if day is None and config.grow_from:
        day = day_after(known.lineage.day) if known and known.lineage else "1"
    return Encoding(known, hashed, len(hashed) < len(names), day)


def column_problems(
    encoding: EncodingConfig, dense: DenseConfig, sizes: Any, spec: Spec, known: Manifest | None
) -> list[str]:
    """All problems of the settings by column. ``sizes``: multi_hot.sizes."""
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
    problems += _mapping_problems("dense.transform", dense.transform, dense_names, dense_names)
    problems += _mapping_problems("dense.bucket_boundaries", dense.bucket_boundaries, dense_names, buckets)
    if known is not None:
        problems += _known_problems(known, encoding, dense, sizes, spec)
        return problems or (_growth_problems(known, encoding, spec) if encoding.grow_from else [])
    if problems:
        return problems
    is_wide = dict(zip(names, (size not in (None, 1) for size in per_column(sizes, names)), strict=True))
    lists = {column.name for column in spec.sparse if column.separator is not None}
    problems = [
        f"multi_hot.sizes of {name} must be 1 or null: its values are lists already"
        for name in names
        if is_wide[name] and name in lists
    ]
    one_hot = [name for name in names if not is_wide[name] and name not in lists]
    one_hot += map(bucket_name, buckets)
    if not names and not buckets:
        problems.append(
            "no column would have a table: give one the role sparse in dataset.columns, or dense.bucket_columns=all"
        )
    return problems + _name_problems("dense.target_columns", dense.target_columns, one_hot)


def _number_problems(
    key: str, value: Any, names: Sequence[str], low: int, high: int, *, needs_all: bool
) -> list[str]:
    """Problems of a setting that is one number for all columns, a list in their order, or a mapping."""
    if problems := _mapping_problems(key, value, names, names if needs_all else (), "sparse"):
        return problems
    if isinstance(value, list) and len(value) != len(names):
        return [
            f"{key} has {len(value)} numbers, the dataset has {len(names)} sparse columns: give one for each"
        ]
    is_one = not isinstance(value, list | Mapping)
    each = {"": value} if is_one else dict(zip(names, per_column(value, names), strict=True))
    return [
        f"{key}{name and f' of {name}'} must be a whole number from {low} to {high}, got {number!r}"
        for name, number in each.items()
        if (number is not None or (needs_all and not is_one))
        and not (type(number) is int and low <= number <= high)
    ]


def _mapping_problems(
    key: str, value: Any, names: Sequence[str], needed: Sequence[str], role: str = "dense"
) -> list[str]:
    """Problems of ``value`` if it is a mapping: it may name only ``names`` and must name all of ``needed``."""
    if not isinstance(value, Mapping):
        return []
    unknown = [str(name) for name in value if name not in names]
    lacking = [name for name in needed if name not in value]
    problems = [f"{key} lacks {', '.join(lacking)}"] if lacking else []
    if unknown:
        problems += [f"{key} names {', '.join(unknown)}: the {role} columns are {', '.join(names)}"]
    return problems


def _name_problems(key: str, wanted: Any, names: Sequence[str]) -> list[str]:
    """Problems of ``wanted``, which may be null, auto, all, or a list of ``names`` without duplicates."""
    given = chosen(wanted, names)
    return [
        f"{key} names {name!r}{'' if name not in names else ' twice'}: give all or a list of {', '.join(names)}"
        for place, name in enumerate(given)
        if name not in names or name in given[:place]
    ]


def _shared_problems(encoding: EncodingConfig, spec: Spec) -> list[str]:
    """Problems of ``encoding.shared``, which may be null, or lists of columns of one kind."""
    groups, names = encoding.shared or [], [column.name for column in spec.sparse]
    if not (isinstance(groups, list) and all(isinstance(group, list) and len(group) > 1 for group in groups)):
        return [f"encoding.shared must hold lists of columns, such as [[item, last_items]], got {groups!r}"]
    if problems := _name_problems("encoding.shared", [name for group in groups for name in group], names):
        return problems
    settings = [per_column(s, names) for s in (encoding.top_k, encoding.min_count, encoding.num_embeddings)]
    way_of = dict(zip(names, zip([c.kind for c in spec.sparse], *settings, strict=True), strict=True))
    return [
        f"encoding.shared puts {', '.join(group)} together, which differ in kind or encoding.top_k, "
        "min_count or num_embeddings: give them the same"
        for group in groups
        if len({way_of[name] for name in group}) > 1
    ]


def sharing_groups(shared: Any, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The numbers of all columns in groups; columns that ``shared`` (encoding.shared) joins form one group."""
    groups = {name: tuple(map(names.index, group)) for group in shared or [] for name in group}
    return tuple(dict.fromkeys(groups.get(name, (number,)) for number, name in enumerate(names)))


def _growth_problems(known: Manifest, encoding: EncodingConfig, spec: Spec) -> list[str]:
    """Reasons why the vocabularies of the dataset ``known`` cannot grow according to ``encoding``."""
    key, names = f"encoding.grow_from={known.path}", [column.name for column in spec.sparse]
    grown = [column for column in known.sparse if column.encoding["kind"] == "vocab"]
    if not grown:
        return [
            f"{key} has no vocabulary that could grow, because its ids are hashes: give encoding=from_dataset encoding.path={known.path}"
        ]
    capacity = dict(zip(names, per_column(encoding.capacity, names), strict=True))
    problems = [
        f"encoding.capacity of {column.name} is {most:,}, its table at {key} has {column.num_embeddings:,} rows "
        "already, and ids never move: give at least that"
        for column in grown
        if (most := capacity[column.name]) is not None and most < column.num_embeddings
    ]
    problems += [
        f"{column.name} of {key} cannot grow: multi_hot.sizes makes ids of it by the number of its values"
        for column in grown
        if "multi_hot" in column.encoding
    ]
    if encoding.day is not None and known.lineage is not None:
        before, day = known.lineage.day, str(encoding.day)
        if is_date(day) != is_date(before) or day_number(day) <= day_number(before):
            problems.append(
                f"encoding.day={day} must come after day {before} of {key}: give {day_after(before)}, or a later one"
            )
    return problems


def _known_problems(
    known: Manifest, encoding: EncodingConfig, dense: DenseConfig, sizes: Any, spec: Spec
) -> list[str]:
    """Reasons why the encoding of the dataset ``known`` cannot be used for files of this format."""
    key = "encoding.path" if encoding.grow_from is None else "encoding.grow_from"
    settings = {
        "multi_hot.sizes": sizes,
        "dense.bucket_columns": dense.bucket_columns,
        "dense.target_columns": dense.target_columns,
    }
    problems = [
        f"{setting} comes with the dataset at {key}: leave it out"
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
        (c.name, c.encoding["raw"], c.multi_hot and "multi_hot" not in c.encoding, c.encoding.get("derived"))
        for c in known.sparse
        if "raw" in c.encoding
    ]
    given: list[Any] = [(c.name, c.derivation) for c in spec.dense]
    given += [(c.name, c.kind, c.separator is not None, c.derivation) for c in spec.sparse]
    if there != given:
        other = [each[0] for each in [*there, *given] if each not in there or each not in given]
        problems.append(
            f"the dataset at {key}={known.path} has other columns than dataset={spec.name} "
            f"({listed([*dict.fromkeys(other)]) or 'in another order'}): give the dataset= it was made with ({known.dataset})"
        )
    label = Label(spec.label) if spec.label is not None else None
    differ = other_labels(label, describe_columns(known)) if any(map(is_target, known.dense)) else None
    if differ:
        given_label, then = differ
        problems.append(
            f"the label here is {given_label.text}, but the target columns at {key}={known.path} are shares of {then.text}: give "
            f"dataset.label={then.name}, or a dataset of rows with the label {given_label.text}"
        )
    return problems


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


def dense_columns(transform: Any, spec: Spec) -> list[DenseColumn]:
    """The dense columns with their transforms. ``transform`` (dense.transform): one for all, or by column."""
    names = [column.name for column in spec.numbers]
    rules = dict(zip(names, per_column(transform, names), strict=True))
    kinds = {column.name: rules.get(column.name, LOGIT) for column in spec.dense}
    return [
        DenseColumn(n, {"kind": kind} if isinstance(kind, str) else dict(kind)) for n, kind in kinds.items()
    ]


def hash_columns(num_embeddings: Any, spec: Spec) -> list[SparseColumn]:
    """The sparse columns with hashed ids. ``num_embeddings``: one for all, or by column, null for the other columns."""
    sizes = per_column(num_embeddings, [column.name for column in spec.sparse])
    encoding = {"kind": "hash", "function": "mix64", "missing_id": MISSING_ID}
    return [
        SparseColumn(c.name, size, {**encoding, "raw": c.kind}, multi_hot=c.separator is not None)
        for c, size in zip(spec.sparse, sizes, strict=True)
        if size is not None
    ]


def with_derivations(
    dense: Sequence[DenseColumn], sparse: Sequence[SparseColumn], spec: Spec
) -> tuple[list[DenseColumn], list[SparseColumn]]:
    """The columns, with the derivation added to those that ``spec`` derives."""
    ways = {column.name: {"derived": column.derivation} for column in spec.derived}
    return (
        [replace(column, transform=column.transform | ways.get(column.name, {})) for column in dense],
        [replace(column, encoding=column.encoding | ways.get(column.name, {})) for column in sparse],
    )


def extended(
    columns: Sequence[SparseColumn], sizes: Any, dense: DenseConfig, spec: Spec
) -> list[SparseColumn]:
    """``columns``, made multi-hot according to ``sizes`` (multi_hot.sizes), and the bucket columns after them."""
    out = list(columns)
    wanted = per_column(sizes, [column.name for column in columns])
    for index, (column, size) in enumerate(zip(columns, wanted, strict=True)):
        if size is not None and size > 1:
            rule = {"rule": "mlperf_v2", "size": size, "column": index}
            out[index] = replace(column, encoding={**column.encoding, "multi_hot": rule}, multi_hot=True)
    given = dense.bucket_boundaries
    for name in chosen(dense.bucket_columns, [column.name for column in spec.numbers]):
        boundaries = [float(bound) for bound in (given[name] if isinstance(given, Mapping) else given)]
        encoding = {"kind": "bucket", "column": name, "boundaries": boundaries, "missing_id": MISSING_ID}
        out.append(SparseColumn(bucket_name(name), len(boundaries) + 2, encoding))
    return out


def target_sources(sparse: Sequence[SparseColumn], wanted: Any) -> tuple[int, ...]:
    """The numbers of the columns among ``sparse`` that ``wanted`` (dense.target_columns) names."""
    names = chosen(wanted, [column.name for column in sparse if not column.multi_hot])
    return tuple(number for number, column in enumerate(sparse) if column.name in names)


@dataclass(frozen=True)
class MadeColumns:
    """The columns of a dataset, and the lineage of vocabularies that grow."""

    dense: list[DenseColumn]
    sparse: list[SparseColumn]
    lineage: Lineage | None = None


def columns_of(known: Manifest) -> MadeColumns:
    """The columns of an existing dataset, for encoding other rows in the same way; without statistics of rows."""
    dense = [DenseColumn(column.name, column.transform) for column in known.dense]
    sparse = [SparseColumn(c.name, c.num_embeddings, c.encoding, c.multi_hot) for c in known.sparse]
    return MadeColumns(dense, sparse, known.encoding_lineage)


def known_groups(known: Manifest, names: Sequence[str]) -> list[tuple[int, ...]]:
    """The numbers, among ``names``, of the columns that share each vocabulary of ``known``."""
    groups: dict[str, list[int]] = {}
    for column in known.sparse:
        if column.encoding["kind"] == "vocab":
            groups.setdefault(column.encoding["file"], []).append(names.index(column.name))
    return [tuple(group) for group in groups.values()]


def lineage_after(known: Manifest, day: str, growth: list[Growth]) -> Lineage:
    """The lineage of vocabularies that were grown from those of ``known`` on ``day``."""
    before = known.lineage or Lineage(day_after(day, -1))
    parent = Ancestor(vocabulary_of(describe_columns(known)), before.day)
    again = {name: day for each in growth if each.given_again for name in each.features}
    return Lineage(
        day, known.fingerprint(), [*before.ancestors, parent], {**before.given_again, **again}, growth
    )
