"""Reads table specs from YAML.

A spec names an embedding table and the features that read it:

    - name: t_item           # must be unique
      rows: 1000000
      dim: 64                # default: tables.embedding_dim
      features: [item, last_items]  # several features may share a table; a feature reads one table
      pooling: mean          # sum, mean or attention (below); default: tables.pooling
      data_type: fp16        # fp32, fp16 or bf16; default: the last pattern of tables.data_types that fits, or
                             # tables.data_type
      init: normal           # uniform, normal or zeros; default: tables.init
      init_scale: 0.01       # uniform: the bound (null: 1/sqrt(rows)); normal: the deviation (null: 1/sqrt(dim))
      init_from: items.parquet  # initial vectors by raw value: columns value, vector (docs/how-to/training.md)
      sharding: {types: [row_wise], kernels: [fused], min_partition: 32}  # see docs/how-to/sharding.md for all
      optimizer: {lr: 0.01}  # settings that differ from optimizer.sparse
      pooling_factors: [1, 20]  # ids a row that each feature is expected to hold; default: 1. For plans, not a limit
      train: false           # of features of ``kind: vectors``: their rows and width are those of the dataset, so that
                             # the spec says name, features and perhaps pooling, sharding and pooling_factors
      count: 16              # makes 16 such tables, t_item_0 to t_item_15, which read item_0 and last_items_0, …

``pooling: {attention: item}`` pools the table's other features, which are lists, by attention to its one-hot feature
``item``, with ``hidden: [32, 16]``, the widths of the unit's layers, and ``softmax: false`` (model/attention.py).
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Annotated, Any, Literal

from msgspec import Meta

from dlrm_app.config.optimizer import SparseSettings
from dlrm_app.config.sharding import constraint_faults
from dlrm_app.config.train import TablesConfig
from dlrm_app.config.values import Count, Positive, value_problems
from dlrm_app.errors import ConfigError, Problem, first_problems, refuse_if
from dlrm_app.tables.frozen_specs import frozen_spec
from dlrm_app.tables.table import Attention, Table
from dlrm_app.tables.vector_rows import VectorRows
from dlrm_app.text import listed

DataType = Literal["fp32", "fp16", "bf16"]
ATTENTION = "attention"
OPTIMIZER_KEYS = tuple(f.name for f in fields(SparseSettings))


_TYPES: dict[str, object] = {
    "name": Any,
    "rows": Count,
    "dim": Annotated[int, Meta(ge=4, multiple_of=4)],  # fbgemm's vector width
    "features": list[Any],
    "pooling": Literal["sum", "mean"],
    "data_type": DataType,
    "init": Literal["uniform", "normal", "zeros"],
    "init_scale": Positive | None,
    "init_from": str | None,
    "sharding": dict[str, Any],
    "optimizer": dict[str, Any],
    "pooling_factors": list[Positive],
    "count": Annotated[int, Meta(ge=1, le=100_000)],
    "train": bool,
}
"""A spec's keys → the types of their values."""
_ATTENTION_TYPES: dict[str, object] = {"attention": str, "hidden": list[Count], "softmax": bool}
"""The keys of a ``pooling`` by attention → the types of their values."""
MAX_MISFITS = 5


def resolve_tables(
    config: TablesConfig,
    feature_rows: Mapping[str, int] | None,
    groups: Sequence[Sequence[str]] = (),
    weighted: Collection[str] = (),
    vectors: Mapping[str, VectorRows] = MappingProxyType({}),
) -> list[Table]:
    """The tables that ``config`` describes for a dataset whose feature f has ids in [0, feature_rows[f]).

    None: no dataset is given. ``groups``: features that share a table of the dataset, each with a feature of one value
    first, then lists. ``weighted``: features whose elements have weights. ``vectors``: feature → the vectors that it
    looks up, of which frozen tables are made. Raises ConfigError with every problem: unknown features, too few rows, a
    feature read twice, and so on.
    """
    groups = [group for group in groups if len({name in vectors for name in group}) == 1]
    given = _given_specs(config, feature_rows or {}, groups, {*weighted, *vectors})
    specs = [frozen_spec(spec, vectors, feature_rows or {}) for spec in given]
    faults: dict[str, tuple[Problem, list[str]]] = {}
    tables: list[Table] = []
    for index, spec in enumerate(specs):
        try:
            tables += _read_spec(spec, config)
        except ConfigError as error:
            name = f" ({spec.get('name', 'no name')})" if isinstance(spec, Mapping) else ""
            for fault in error.problems:
                _, where = faults.setdefault(str(fault), (fault, []))
                where.append(f"tables.specs[{index}]{name}")
    problems = [
        fault.within(f"{where[0]}{f' and {len(where) - 1} more' * (len(where) > 1)}")
        for fault, where in faults.values()
    ]
    tables = [replace(t, weighted=tuple(name for name in t.features if name in weighted)) for t in tables]
    tables = [_with_vectors(table, vectors) for table in tables]
    problems += _unsummed(tables)
    problems += _conflicts(tables) + _pattern_faults(config.data_types, tables)
    if feature_rows is not None:
        problems += first_problems(_misfits(tables, feature_rows), MAX_MISFITS)
    refuse_if(problems)
    return tables


def _given_specs(
    config: TablesConfig,
    feature_rows: Mapping[str, int],
    groups: Sequence[Sequence[str]],
    weighted: Collection[str],
) -> Sequence[object]:
    """The specs of ``config``, or those that it makes of the dataset. Raises ConfigError if there are none."""
    if not config.from_dataset:
        if not config.specs:
            cure = "give at least one table, or choose tables=dataset"
            raise ConfigError(Problem("tables.specs", "is empty", cure))
        return config.specs
    if config.specs:
        raise ConfigError(
            Problem("tables.from_dataset=true", "makes the tables itself", "leave tables.specs empty")
        )
    if config.pooling == ATTENTION and not attending(groups, weighted):
        rule = "finds no list that has one vocabulary with a column to attend to, and no element weights"
        cure = "preprocess with encoding=vocab encoding.shared=[[COLUMN, LIST]], or use tables.pooling=sum"
        raise ConfigError(Problem("tables.pooling=attention", rule, cure))
    if specs := _specs_of_dataset(config, feature_rows, groups, weighted):
        return specs
    rule = "finds no sparse column in the dataset to make a table for"
    cure = "preprocess with one, or with dense.bucket_columns=all"
    raise ConfigError(Problem("tables.from_dataset", rule, cure))


def _with_vectors(table: Table, vectors: Mapping[str, VectorRows]) -> Table:
    """``table``, frozen if its features look up vectors."""
    return replace(table, vectors=vectors[table.features[0]]) if table.features[0] in vectors else table


def attending(groups: Sequence[Sequence[str]], weighted: Collection[str]) -> list[Sequence[str]]:
    """The ``groups`` of a feature and lists that tables.pooling=attention is for; lists with weights are summed."""
    return [group for group in groups if len(group) > 1 and not {*group} & {*weighted}]


def _specs_of_dataset(
    config: TablesConfig,
    feature_rows: Mapping[str, int],
    groups: Sequence[Sequence[str]],
    weighted: Collection[str],
) -> list[dict[str, object]]:
    """A spec for each feature, or group of features. With pooling=attention, lists with weights are summed by these."""
    group_of = {group[0]: group for group in groups if len(group) > 1}
    lists = {name for group in group_of.values() for name in group[1:]}
    specs, taken = [], {feature for feature in feature_rows if "." not in feature}
    for feature, rows in feature_rows.items():
        if feature not in lists:
            group = list(group_of.get(feature, (feature,)))
            name = feature.replace(".", "_")  # a CSV's header may have dots, torch's module names may not
            while name != feature and name in taken:
                name += "_"
            taken.add(name)
            spec = {"name": f"t_{name}", "rows": rows, "features": group}
            if config.pooling == ATTENTION:
                spec["pooling"] = {ATTENTION: feature} if attending([group], weighted) else "sum"
            specs.append(spec)
    return specs


def _read_spec(spec: object, config: TablesConfig) -> list[Table]:
    """The tables of one spec. Raises ConfigError with all its problems."""
    if not isinstance(spec, Mapping):
        raise ConfigError(Problem("", f"must be a mapping with {', '.join(_TYPES)}", value=spec))
    needed = {"name": "name", "rows": "rows", "features": "features"}
    if config.embedding_dim is None:
        needed["dim"] = "dim (or tables.embedding_dim)"
    cure = f"use {', '.join(_TYPES)}"
    unknown = [Problem(str(key), "is not a key of a table", cure) for key in spec if key not in _TYPES]
    refuse_if([*unknown, *(Problem(name, "is missing") for key, name in needed.items() if key not in spec)])
    defaults = ("pooling", "data_type", "init", "init_scale")
    values = {"dim": config.embedding_dim, **{key: getattr(config, key) for key in defaults}, **spec}
    attention = values.pop("pooling") if isinstance(values["pooling"], Mapping) else None
    faults: list[Problem] = []
    for key, value in values.items():
        faults += value_problems(key, value, _TYPES[key])
    faults += [] if attention is None else _attention_faults(attention)
    refuse_if(faults)
    if attention is not None:
        values["pooling"] = _read_attention(attention)
    count = values.pop("count", None)
    values.pop("train", None)
    tuples = {key: tuple(values.get(key, ())) for key in ("features", "pooling_factors")}
    table = Table(**{**values, **tuples})
    refuse_if(_table_faults(table))
    tables = [table] if count is None else [_numbered(table, number) for number in range(count)]
    if "data_type" in spec:
        return [replace(each, precision_by="") for each in tables]
    return [_of_pattern(each, config.data_types) for each in tables]


def _attention_faults(pooling: Mapping[str, object]) -> list[Problem]:
    """Problems of a ``pooling`` that is a mapping."""
    if "attention" not in pooling:
        cure = "use sum, mean or {attention: FEATURE}, FEATURE being the table's one-hot feature"
        return [Problem("pooling", "names no feature to attend to", cure, dict(pooling))]
    cure = f"use {', '.join(_ATTENTION_TYPES)}"
    unknown = [Problem(f"pooling.{k}", "is not known", cure) for k in pooling if k not in _ATTENTION_TYPES]
    known = ((key, value) for key, value in pooling.items() if key in _ATTENTION_TYPES)
    return unknown + [f for k, v in known for f in value_problems(f"pooling.{k}", v, _ATTENTION_TYPES[k])]


def _read_attention(pooling: Mapping[str, object]) -> Attention:
    settings: dict[str, Any] = {"target" if key == "attention" else key: pooling[key] for key in pooling}
    if "hidden" in settings:
        settings["hidden"] = tuple(settings["hidden"])
    return Attention(**settings)


def _of_pattern(table: Table, data_types: Mapping[str, str]) -> Table:
    fitting = [pattern for pattern in data_types if fnmatchcase(table.name, pattern)]
    return replace(table, data_type=data_types[fitting[-1]], precision_by=fitting[-1]) if fitting else table


def _pattern_faults(data_types: Mapping[str, str], tables: Sequence[Table]) -> list[Problem]:
    names = [table.name for table in tables]
    faults = [f for kind in data_types.values() for f in value_problems("tables.data_types", kind, DataType)]
    return faults + [
        Problem(f"tables.data_types.{pattern}", "fits no table", f"they are {listed(names, 30)}")
        for pattern in data_types
        if names and not any(fnmatchcase(name, pattern) for name in names)
    ]


def _numbered(table: Table, number: int) -> Table:
    features = tuple(f"{feature}_{number}" for feature in table.features)
    pooling = table.pooling
    if isinstance(pooling, Attention):
        pooling = replace(pooling, target=f"{pooling.target}_{number}")
    return replace(table, name=f"{table.name}_{number}", features=features, pooling=pooling)


def _table_faults(table: Table) -> list[Problem]:
    """Other problems of a table whose values have the right types and ranges."""
    faults: list[Problem] = []
    name = table.name
    # used as a name of a torch module and as part of a file's name
    if not (isinstance(name, str) and name.isprintable() and name.strip()) or {".", "/"} & {*name}:
        faults.append(Problem("name", "must be a text without dots and slashes, such as t_item", value=name))
    if not table.features or not all(isinstance(feature, str) for feature in table.features):
        rule = "must be a list of names, at least one"
        faults.append(Problem("features", rule, value=list(table.features)))
    if len(table.pooling_factors) not in (0, len(table.features)):
        rule = f"must hold a positive number for each of the {len(table.features)} features"
        faults.append(Problem("pooling_factors", rule, value=list(table.pooling_factors)))
    target = table.attention.target if table.attention else None
    if target is not None and (target not in table.features or len(table.features) == 1):
        rule = (
            f"must be one of the table's features, beside the lists that it pools: {listed(table.features)}"
        )
        faults.append(Problem("pooling.attention", rule, "name both in features", target))
    faults += constraint_faults("sharding", table.sharding)
    unknown = [key for key in table.optimizer if key not in OPTIMIZER_KEYS]
    cure = f"use {', '.join(OPTIMIZER_KEYS)}"
    return faults + [Problem(f"optimizer.{key}", "is not known", cure) for key in unknown]


def _conflicts(tables: list[Table]) -> list[Problem]:
    counted = Counter(table.name for table in tables)
    rule = "is the name of several tables"
    problems = [Problem(f"table {n}", rule, "names must be unique") for n in counted if counted[n] > 1]
    owner: dict[str, str] = {}
    for table in tables:
        for feature in table.features:
            if feature in owner:
                rule = f"is read by tables {owner[feature]} and {table.name}, but a feature reads one table"
                cure = "give the dataset a second column for the second table"
                problems.append(Problem(f"feature {feature}", rule, cure))
            owner[feature] = table.name
    return problems


def _unsummed(tables: Sequence[Table]) -> list[Problem]:
    return [
        Problem(
            f"table {table.name}",
            f"has pooling {table.pooling}, and the elements of {listed(table.weighted)} have weights, "
            "which are for sums",
            "give it pooling: sum, or preprocess with role: ignore for the weights",
        )
        for table in tables
        if table.weighted and table.pooling != "sum"
    ]


def _misfits(tables: list[Table], feature_rows: Mapping[str, int]) -> list[Problem]:
    problems: list[Problem] = []
    for table in tables:
        for feature in table.features:
            if feature not in feature_rows:
                rule = f"reads feature {feature}, which the dataset does not have"
                problems.append(Problem(f"table {table.name}", rule, f"it has {listed([*feature_rows], 30)}"))
            elif feature_rows[feature] > table.rows:
                rule = f"has {table.rows:,} rows, but feature {feature} has ids up to {feature_rows[feature] - 1:,}"
                cure = (
                    f"give it rows: {feature_rows[feature]}, use tables=dataset, "
                    "or preprocess with a smaller encoding.num_embeddings"
                )
                problems.append(Problem(f"table {table.name}", rule, cure))
    return problems
