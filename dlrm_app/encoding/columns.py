"""The columns of the dataset to make: the rules that the configuration sets for them, and the finished columns."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dlrm_app.config.datasets import AUTO, DenseConfig, EncodingConfig
from dlrm_app.config.values import VectorType
from dlrm_app.dataset.columns import describe_columns, is_opinion
from dlrm_app.dataset.lineage import Ancestor, Growth, Lineage, vocabulary_of
from dlrm_app.dataset.manifest import DenseColumn, Manifest, SparseColumn, read_manifest
from dlrm_app.dataset.vector_columns import VectorColumn
from dlrm_app.dates import day_after, day_number, in_units_of
from dlrm_app.encoding.column_settings import (
    ColumnSettings,
    bucket_name,
    chosen,
    new_columns,
    new_numbers,
    per_column,
)
from dlrm_app.encoding.dense import LOGIT
from dlrm_app.encoding.sparse import FIRST_ID, MISSING_ID
from dlrm_app.logs.spec import LogColumn, Spec
from dlrm_app.text import listed

logger = logging.getLogger(__name__)

MIN_COUNT = 2
"""The default of min_count: values with fewer rows share one id."""


@dataclass(frozen=True)
class VocabularyRule:
    """The rule of a vocabulary.

    day: the number of the day
    rows: the most rows of its table, including those of missing and rare values; None for no limit
    expire_days: days without a row after which a value loses its id
    """

    day: int
    min_count: int = 1
    rows: int | None = None
    expire_days: int | None = None


@dataclass(frozen=True)
class ColumnRules:
    """The rules by which the columns are made, from the settings alone.

    base: the dataset whose encodings are used, or grown; fields from ``dense`` to ``targets`` then hold only columns
        that it lacks
    day: the day of vocabularies that grow
    counted: sparse columns whose distinct values are counted while rows are encoded; vocabularies count their own
    groups: the sparse columns, by number, that share each vocabulary to make
    vocabularies: the rule of each sparse column, should it have a vocabulary
    dense: the dense columns; ``standardize`` may lack its moments
    hashed: the sparse columns with hashed ids
    sizes: ids per row of each sparse column; None for as many as the log has
    buckets: the sparse columns made of dense ones
    targets: the sparse columns that also get a dense column with their click rate
    vectors: the columns of vectors in each row
    looked_up: the columns that look vectors up, to be made of their files
    vector_type: the type in which these are kept
    """

    base: Manifest | None
    day: str | None
    counted: frozenset[str]
    groups: tuple[tuple[int, ...], ...]
    vocabularies: tuple[VocabularyRule, ...]
    dense: tuple[DenseColumn, ...] = ()
    hashed: tuple[SparseColumn, ...] = ()
    sizes: tuple[int | None, ...] = ()
    buckets: tuple[SparseColumn, ...] = ()
    targets: tuple[str, ...] = ()
    vectors: tuple[VectorColumn, ...] = ()
    looked_up: tuple[LogColumn, ...] = ()
    vector_type: VectorType = "fp16"

    @property
    def grows_from(self) -> Manifest | None:
        """The dataset whose vocabularies grow, if they do."""
        return self.base if self.day is not None else None


@dataclass(frozen=True)
class MadeColumns:
    """The columns of a dataset, and the lineage of vocabularies that grow."""

    dense: list[DenseColumn]
    sparse: list[SparseColumn]
    lineage: Lineage | None = None
    vectors: tuple[VectorColumn, ...] = ()


def read_base(config: EncodingConfig) -> Manifest | None:
    """The manifest of the dataset at encoding.path or encoding.grow_from."""
    path = config.path if config.kind == "from_dataset" else config.grow_from
    return read_manifest(Path(path)) if path else None


def base_transform(base: Manifest, spec: Spec, typed: object) -> object:
    """The value of dense.transform for the dataset ``base``. Warns if another one was ``typed``.

    If ``base`` lacks dense columns of ``spec``, the value is a mapping with the ``typed`` values for them.
    """
    kinds = {c.name: c.transform["kind"] for c in base.dense if not is_opinion(c)}
    if new := new_numbers(base, spec):
        return {**kinds, **dict(zip(new, per_column(typed, new), strict=True))}
    one = [*set(kinds.values())]
    transform = one[0] if len(one) == 1 else kinds or typed
    if typed not in (AUTO, transform):
        logger.warning(f"dense.transform={typed} is not used: {base.path} has {listed(one)}")
    return transform


def column_rules(settings: ColumnSettings, spec: Spec, base: Manifest | None) -> ColumnRules:
    """The rules for the columns of ``spec``. ``settings`` has no open choices; ``base`` comes from ``read_base``."""
    encoding, dense = settings.encoding, settings.dense
    names = [column.name for column in spec.sparse]
    day = vocabulary_day(encoding, base)
    vectors = vector_columns(settings.vector_type, spec, base)
    if base is not None:
        has_vocabulary = {c.name for c in base.sparse if c.encoding["kind"] == "vocab" and encoding.grow_from}
        new = new_columns(base, spec)
        counted = frozenset(names) - has_vocabulary - {*new}
        groups = tuple(base_groups(base, names)) if encoding.grow_from else ()
        groups += tuple((names.index(name),) for name in new)
        base_names = {column.name for column in base.dense}
        added = tuple(c for c in dense_columns(dense.transform, spec) if c.name not in base_names)
        rules = vocabulary_rules(encoding, day, names)
        kept = {
            column.name: column.encoding["vectors"]["dtype"]
            for column in base.sparse
            if "vectors" in column.encoding
        }
        looked_up = [c for c in spec.looked_up if encoding.grow_from or c.name not in kept]
        made = ColumnRules(base, day, counted, groups, rules, added, vectors=vectors)
        dtype = next(iter(kept.values()), settings.vector_type)
        return replace(made, looked_up=tuple(looked_up), vector_type=dtype)
    hashed = hash_columns(encoding.num_embeddings, spec)
    counted = frozenset(column.name for column in hashed) if encoding.kind == "vocab" else frozenset(names)
    sizes = per_column(settings.sizes, names)
    buckets = bucket_columns(dense, spec)
    one_hot = [
        c.name for c, n in zip(spec.sparse, sizes, strict=True) if c.separator is None and n in (None, 1)
    ]
    return ColumnRules(
        None,
        day,
        counted,
        tuple(group for group in sharing_groups(encoding.shared, names) if names[group[0]] not in counted),
        vocabulary_rules(encoding, day, names),
        tuple(dense_columns(dense.transform, spec)),
        tuple(hashed),
        tuple(sizes),
        tuple(buckets),
        tuple(chosen(dense.target_columns, [*one_hot, *(column.name for column in buckets)])),
        vectors,
        tuple(spec.looked_up),
        settings.vector_type,
    )


def vocabulary_day(encoding: EncodingConfig, base: Manifest | None) -> str | None:
    """The day of vocabularies that grow: the one that is given, or the one after that of ``base``; None if none does."""
    if encoding.day is None and encoding.grow_from and base is not None:
        return day_after(base.lineage.day) if base.lineage else "1"
    return None if encoding.day is None else str(encoding.day)


def vector_columns(dtype: VectorType, spec: Spec, base: Manifest | None) -> tuple[VectorColumn, ...]:
    """The columns of vectors in each row, which shards keep as ``dtype``, or as those of ``base`` do."""
    kept = {column.name: column.dtype for column in base.vectors} if base else {}
    return tuple(VectorColumn(c.name, c.size or 0, kept.get(c.name, dtype)) for c in spec.vectors)


def vocabulary_rules(
    encoding: EncodingConfig, day: str | None, names: Sequence[str]
) -> tuple[VocabularyRule, ...]:
    """The rule of the vocabulary of each sparse column."""
    columns = (per_column(each, names) for each in (encoding.min_count, encoding.top_k, encoding.capacity))
    number = 0 if day is None else day_number(day)
    expire = encoding.expire_days
    if expire is not None and day is not None:
        expire = in_units_of(day, expire)
    usual = MIN_COUNT if encoding.kind == "from_dataset" else 1
    return tuple(
        VocabularyRule(number, least or usual, capacity if top_k is None else FIRST_ID + top_k, expire)
        for least, top_k, capacity in zip(*columns, strict=True)
    )


def sharing_groups(
    shared: Sequence[Sequence[str]] | None, names: Sequence[str]
) -> tuple[tuple[int, ...], ...]:
    """The numbers of all columns in groups; columns that ``shared`` (encoding.shared) joins form one group."""
    groups = {name: tuple(map(names.index, group)) for group in shared or [] for name in group}
    return tuple(dict.fromkeys(groups.get(name, (number,)) for number, name in enumerate(names)))


def dense_columns(transform: object, spec: Spec) -> list[DenseColumn]:
    """The dense columns with their transforms. ``transform`` (dense.transform): one for all, or by column."""
    names = [column.name for column in spec.numbers]
    rules = dict(zip(names, per_column(transform, names), strict=True))
    kinds = {column.name: rules.get(column.name, LOGIT) for column in spec.dense}
    return [
        DenseColumn(n, {"kind": kind} if isinstance(kind, str) else dict(kind)) for n, kind in kinds.items()
    ]


def hash_columns(num_embeddings: object, spec: Spec) -> list[SparseColumn]:
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
    """The columns, with the derivation added to those that ``spec`` derives, and the names of element weights."""
    weights = {column.weights_of: column.name for column in spec.element_weights}
    ways = {column.name: {"derived": column.derivation} for column in spec.derived}
    return (
        [replace(column, transform=column.transform | ways.get(column.name, {})) for column in dense],
        [replace(c, encoding=c.encoding | ways.get(c.name, {}), weights=weights.get(c.name)) for c in sparse],
    )


def bucket_columns(dense: DenseConfig, spec: Spec) -> list[SparseColumn]:
    """The sparse columns with the buckets of dense columns."""
    given, columns = dense.bucket_boundaries, []
    for name in chosen(dense.bucket_columns, [column.name for column in spec.numbers]):
        boundaries = [float(bound) for bound in (given[name] if isinstance(given, Mapping) else given)]
        encoding = {"kind": "bucket", "column": name, "boundaries": boundaries, "missing_id": MISSING_ID}
        columns.append(SparseColumn(bucket_name(name), len(boundaries) + 2, encoding))
    return columns


def with_sizes(columns: Sequence[SparseColumn], sizes: Sequence[int | None]) -> list[SparseColumn]:
    """``columns``, multi-hot by MLPerf's rule where ``sizes`` asks for more than one id per row."""
    out = list(columns)
    for index, (column, size) in enumerate(zip(columns, sizes, strict=True)):
        if size is not None and size > 1:
            rule = {"rule": "mlperf_v2", "size": size, "column": index}
            out[index] = replace(column, encoding={**column.encoding, "multi_hot": rule}, multi_hot=True)
    return out


def columns_of(base: Manifest) -> MadeColumns:
    """The columns of an existing dataset, to encode other rows in the same way; without statistics of its rows."""
    dense = [DenseColumn(column.name, column.transform) for column in base.dense]
    sparse = [
        SparseColumn(c.name, c.num_embeddings, c.encoding, c.multi_hot, weights=c.weights)
        for c in base.sparse
    ]
    return MadeColumns(dense, sparse, base.encoding_lineage)


def base_groups(base: Manifest, names: Sequence[str]) -> list[tuple[int, ...]]:
    """The numbers, among ``names``, of the columns that share each vocabulary of ``base``."""
    groups: dict[str, list[int]] = {}
    for column in base.sparse:
        if column.encoding["kind"] == "vocab" and "vectors" not in column.encoding:
            groups.setdefault(column.encoding["file"], []).append(names.index(column.name))
    return [tuple(group) for group in groups.values()]


def lineage_with_new_vocabularies(base: Manifest, sparse: Sequence[SparseColumn]) -> Lineage | None:
    """The lineage of the vocabularies of ``sparse``: those of ``base``, unchanged, and new ones."""
    lineage = base.encoding_lineage
    if lineage is None or {column.name for column in sparse} <= {column.name for column in base.sparse}:
        return lineage
    return replace(lineage, ancestors=[*lineage.ancestors, _as_ancestor(base, lineage.day)])


def lineage_after(base: Manifest, day: str, growth: list[Growth]) -> Lineage:
    """The lineage of vocabularies that were grown from those of ``base`` on ``day``."""
    before = base.lineage or Lineage(day_after(day, -1))
    again = {name: day for each in growth if each.given_again for name in each.features}
    return Lineage(
        day,
        base.fingerprint(),
        [*before.ancestors, _as_ancestor(base, before.day)],
        {**before.given_again, **again},
        growth,
    )


def _as_ancestor(base: Manifest, day: str) -> Ancestor:
    return Ancestor(vocabulary_of(describe_columns(base)), day)
