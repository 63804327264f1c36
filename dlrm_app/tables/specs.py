"""Table specs, from YAML.

A spec names an embedding table and the features that read it:

    - name: t_item           # must be unique
      rows: 1000000
      dim: 64                # default: tables.embedding_dim
      features: [item, last_items]  # several features may share a table; a feature reads one table
      pooling: mean          # sum or mean; default: tables.pooling
      data_type: fp16        # fp32, fp16 or bf16; default: the last pattern of tables.data_types that fits, or
                             # tables.data_type
      init: normal           # uniform, normal or zeros; default: tables.init
      init_scale: 0.01       # uniform: the bound (null: 1/sqrt(rows)); normal: the deviation (null: 1/sqrt(dim))
      sharding: {types: [row_wise], kernels: [fused], min_partition: 32}  # see docs/how-to/sharding.md for all
      optimizer: {lr: 0.01}  # what differs from optimizer.sparse
      pooling_factors: [1, 20]  # ids a row that each feature is expected to hold; default: 1. For plans, not a limit
      count: 16              # stands for 16 such tables, t_item_0 to t_item_15, which read item_0 and last_items_0, …
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from math import inf
from typing import Any

from dlrm_app.config.keys import RENAMED_IN_SPECS
from dlrm_app.config.optimizer import SparseSettings
from dlrm_app.config.schema import above_zero, one_of
from dlrm_app.config.sharding import constraint_problems
from dlrm_app.config.train import TablesConfig
from dlrm_app.errors import ConfigError, refuse_if
from dlrm_app.text import first_lines, listed

POOLINGS = ("sum", "mean")
BYTES_PER_WEIGHT = {"fp32": 4, "fp16": 2, "bf16": 2}
DATA_TYPES = tuple(BYTES_PER_WEIGHT)
INITS = ("uniform", "normal", "zeros")
OPTIMIZER_KEYS = tuple(f.name for f in fields(SparseSettings))


@dataclass(frozen=True)
class Table:
    """An embedding table of ``rows`` × ``dim`` weights and the features that look into it."""

    name: str
    rows: int
    dim: int
    features: tuple[str, ...]
    pooling: str = "sum"
    data_type: str = "fp32"
    init: str = "uniform"
    init_scale: float | None = None
    sharding: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    pooling_factors: tuple[float, ...] = ()
    """The ids a row that each feature is expected to hold; empty: nobody says."""
    precision_by: str | None = None
    """What chose ``data_type``: a pattern of tables.data_types, "" for the table's spec; None: tables.data_type."""

    @property
    def expected_pooling_factors(self) -> list[float]:
        """``pooling_factors``, or 1 for each feature."""
        return [float(ids) for ids in self.pooling_factors] or [1.0] * len(self.features)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights alone."""
        return self.rows * self.dim * BYTES_PER_WEIGHT[self.data_type]


SPEC_KEYS = (*(f.name for f in fields(Table) if f.name != "precision_by"), "count")
MAX_MISFITS = 5
MAX_COUNT = 100_000
"""Of tables that one spec stands for: a hundred times those of any model published."""


def resolve_tables(config: TablesConfig, feature_rows: Mapping[str, int] | None) -> list[Table]:
    """The tables that ``config`` describes for a dataset whose feature f has ids in [0, feature_rows[f]).

    None: there is no dataset to fit. Raises ConfigError with every fault: unknown features, too few rows,
    a feature read twice, and so on.
    """
    if config.from_dataset and config.specs:
        raise ConfigError(["tables.from_dataset=true makes the tables itself: leave tables.specs empty"])
    specs: list[Any] = list(config.specs)
    if config.from_dataset:
        specs = [
            {"name": _name_for(feature), "rows": rows, "features": [feature]}
            for feature, rows in (feature_rows or {}).items()
        ]
    if not specs and config.from_dataset:
        raise ConfigError(
            [
                "the dataset has no sparse column to make a table of: preprocess with one, or with dense.bucket_columns=all"
            ]
        )
    if not specs:
        raise ConfigError(["tables.specs is empty: give at least one table, or choose tables=dataset"])
    faults: dict[str, list[str]] = defaultdict(list)
    tables = []
    for index, spec in enumerate(specs):
        tables += _read_spec(index, spec, config, faults)
    problems = [f"{_and_more(where)}{fault}" for fault, where in faults.items()]
    problems += _conflicts(tables) + _pattern_faults(config.data_types, tables)
    if feature_rows is not None:
        problems += first_lines(_misfits(tables, feature_rows), MAX_MISFITS)
    refuse_if(problems)
    return tables


def _name_for(feature: str) -> str:
    """The name of a feature's own table: torch takes no dots in names of modules, a CSV's header does."""
    return f"t_{feature.replace('.', '_')}"


def _and_more(where: Sequence[str]) -> str:
    return f"{where[0]} and {len(where) - 1} more: " if len(where) > 1 else f"{where[0]}: "


def _read_spec(index: int, spec: Any, config: TablesConfig, problems: dict[str, list[str]]) -> list[Table]:
    """The tables of one spec; else adds to ``problems``, fault → the specs that have it."""
    if not isinstance(spec, Mapping):
        problems[f"must be a mapping with {', '.join(SPEC_KEYS)}, got {spec!r}"].append(
            f"tables.specs[{index}]"
        )
        return []
    where = f"tables.specs[{index}] ({spec.get('name', 'no name')})"
    unknown = [str(key) for key in spec if key not in SPEC_KEYS]
    missing = [key for key in ("name", "rows", "features") if key not in spec]
    if unknown or missing:
        for fault in [*map(_unknown_key, unknown), *(f"{key} is missing" for key in missing)]:
            problems[fault].append(where)
        return []
    defaults = {
        "dim": config.embedding_dim,
        "pooling": config.pooling,
        "data_type": config.data_type,
        "init": config.init,
        "init_scale": config.init_scale,
    }
    given = {key: value for key, value in spec.items() if key != "count"}
    lists = {key: tuple(spec[key]) for key in ("features", "pooling_factors") if _is_list(spec.get(key))}
    table = Table(**{**defaults, **given, **lists})
    faults, count = _table_faults(table), spec.get("count")
    if count is not None and not _is_whole(count, MAX_COUNT):
        faults.append(f"count must be a whole number from 1 to {MAX_COUNT}, got {count!r}")
    for fault in faults:
        problems[fault].append(where)
    if faults:
        return []
    expanded = _expand(table, count)
    if "data_type" in spec:
        return [replace(one, precision_by="") for one in expanded]
    return [_of_pattern(one, config.data_types) for one in expanded]


def _unknown_key(key: str) -> str:
    if key in RENAMED_IN_SPECS:
        return f"{key} is now called {RENAMED_IN_SPECS[key]}"
    return f"{key} is not a key of a table: use {', '.join(SPEC_KEYS)}"


def _of_pattern(table: Table, data_types: Mapping[str, str]) -> Table:
    fitting = [pattern for pattern in data_types if fnmatchcase(table.name, pattern)]
    return replace(table, data_type=data_types[fitting[-1]], precision_by=fitting[-1]) if fitting else table


def _pattern_faults(data_types: Mapping[str, str], tables: Sequence[Table]) -> list[str]:
    names = [table.name for table in tables]
    faults = [f for kind in data_types.values() for f in one_of("tables.data_types", kind, DATA_TYPES)]
    return faults + [
        f"tables.data_types.{pattern} fits no table: they are {listed(names, 30)}"
        for pattern in data_types
        if names and not any(fnmatchcase(name, pattern) for name in names)
    ]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _expand(table: Table, count: int | None) -> list[Table]:
    """``count`` tables like ``table``, numbered with their features; None: itself."""
    if count is None:
        return [table]
    return [
        replace(
            table, name=f"{table.name}_{i}", features=tuple(f"{feature}_{i}" for feature in table.features)
        )
        for i in range(count)
    ]


def _is_whole(value: Any, most: int = 2**63 - 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _is_name(value: Any) -> bool:
    """Whether torch takes it as a module's name, and a file as part of one."""
    return (
        isinstance(value, str) and value.isprintable() and bool(value.strip()) and not {".", "/"} & {*value}
    )


def _list_faults(table: Table) -> list[str]:
    features, factors = table.features, table.pooling_factors
    if not isinstance(features, tuple) or not features or not all(isinstance(name, str) for name in features):
        return [f"features must be a list of names, at least one, got {features!r}"]
    if (
        isinstance(factors, tuple)
        and len(factors) in (0, len(features))
        and all(_is_positive(ids) for ids in factors)
    ):
        return []
    return [
        f"pooling_factors must hold a positive number for each of the {len(features)} features, got {factors!r}"
    ]


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < inf


def _table_faults(table: Table) -> list[str]:
    faults = []
    if not _is_name(table.name):
        faults.append(f"name must be a text without dots and slashes, such as t_item, got {table.name!r}")
    for key in ("rows", "dim"):
        value = getattr(table, key)
        if not _is_whole(value):
            hint = " (or set tables.embedding_dim)" if key == "dim" else ""
            faults.append(f"{key} must be a whole number of at least 1, got {value!r}{hint}")
    if isinstance(table.dim, int) and table.dim % 4:
        faults.append(f"dim must be a multiple of 4 (fbgemm's vector width), got {table.dim}")
    faults += _list_faults(table)
    for key, choices in (("pooling", POOLINGS), ("data_type", DATA_TYPES), ("init", INITS)):
        faults += one_of(key, getattr(table, key), choices)
    if table.init_scale is not None and not _is_positive(table.init_scale):
        faults.append(f"init_scale must be a positive number, got {table.init_scale!r}")
    elif table.init_scale is not None:
        faults += above_zero("init_scale", table.init_scale)
    faults += constraint_problems("sharding", table.sharding)
    if not isinstance(table.optimizer, Mapping):
        return [
            *faults,
            f"optimizer must be a mapping with {', '.join(OPTIMIZER_KEYS)}, got {table.optimizer!r}",
        ]
    return faults + [
        f"optimizer.{key} is not known: use {', '.join(OPTIMIZER_KEYS)}"
        for key in table.optimizer
        if key not in OPTIMIZER_KEYS
    ]


def _conflicts(tables: list[Table]) -> list[str]:
    problems = []
    owner: dict[str, str] = {}
    names: set[str] = set()
    for table in tables:
        if table.name in names:
            problems.append(f"two tables are named {table.name}: names must be unique")
        names.add(table.name)
        for feature in table.features:
            if feature in owner:
                problems.append(
                    f"feature {feature} is read by tables {owner[feature]} and {table.name}: "
                    "a feature reads one table; give the dataset a second column for the second table"
                )
            owner[feature] = table.name
    return problems


def _misfits(tables: list[Table], feature_rows: Mapping[str, int]) -> list[str]:
    problems = []
    for table in tables:
        for feature in table.features:
            if feature not in feature_rows:
                problems.append(
                    f"table {table.name} reads feature {feature}, which the dataset has not; "
                    f"it has {listed([*feature_rows], 30)}"
                )
            elif feature_rows[feature] > table.rows:
                problems.append(
                    f"table {table.name} has {table.rows:,} rows, but feature {feature} has ids up to "
                    f"{feature_rows[feature] - 1:,}: give it rows: {feature_rows[feature]}, use tables=dataset, "
                    "or preprocess with a smaller encoding.num_embeddings"
                )
    return problems


def table_of(parameter: str) -> str | None:
    """The table whose weights ``parameter`` (its dotted name in a model) is; None for the dense part's.

    torchrec names them ``….embedding_bags.<table>.weight``, sharded or not.
    """
    parts = parameter.split(".")
    return parts[-2] if "embedding_bags" in parts else None
