"""An embedding table; the tables of a model in their order, and the names of their weights."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dlrm_app.records import Json
from dlrm_app.tables.vector_rows import VectorRows

BYTES_PER_WEIGHT = {"fp32": 4, "fp16": 2, "bf16": 2}


@dataclass(frozen=True)
class Attention:
    """Pooling by attention to the table's one-hot feature ``target``, by a unit with layers of ``hidden`` widths.

    ``softmax``: the weights of a row's list add up to 1.
    """

    target: str
    hidden: tuple[int, ...] = (32, 16)
    softmax: bool = False

    def __str__(self) -> str:
        return f"{{attention: {self.target}, hidden: {[*self.hidden]}, softmax: {str(self.softmax).lower()}}}"


@dataclass(frozen=True)
class Table:
    """An embedding table of ``rows`` × ``dim`` weights and the features that look into it."""

    name: str
    rows: int
    dim: int
    features: tuple[str, ...]
    pooling: str | Attention = "sum"
    data_type: str = "fp32"
    init: str = "uniform"
    init_scale: float | None = None
    sharding: Json = field(default_factory=dict)
    optimizer: Json = field(default_factory=dict)
    pooling_factors: tuple[float, ...] = ()
    """The ids a row that each feature is expected to hold; empty if unknown."""
    precision_by: str | None = None
    """The origin of ``data_type``: a pattern of tables.data_types, "" for the spec, None for tables.data_type."""
    init_from: str | None = None
    """A file of initial vectors by raw value."""
    vectors: VectorRows | None = None
    """The file of its rows, if these are not trained; ``dim`` is then their width, filled up to a multiple of 4."""
    weighted: tuple[str, ...] = ()
    """The features whose elements have weights, in the order of ``features``: their vectors are multiplied by these."""

    @property
    def expected_pooling_factors(self) -> list[float]:
        """``pooling_factors``, or 1 for each feature."""
        return [float(ids) for ids in self.pooling_factors] or [1.0] * len(self.features)

    @property
    def is_frozen(self) -> bool:
        """True if its rows are not trained."""
        return self.vectors is not None

    @property
    def attention(self) -> Attention | None:
        """The attention by which lists are pooled; None if sums or means are."""
        return self.pooling if isinstance(self.pooling, Attention) else None

    @property
    def lists(self) -> list[str]:
        """The features that are pooled by attention."""
        return [name for name in self.features if self.attention and name != self.attention.target]

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights, without optimizer state."""
        return self.rows * self.dim * BYTES_PER_WEIGHT[self.data_type]


def features_of(tables: Iterable[Table]) -> list[str]:
    """The features of ``tables``, in their order."""
    return [name for table in tables for name in table.features]


def with_pooling_factors(tables: Sequence[Table], means: Mapping[str, float]) -> list[Table]:
    """Gives tables whose specs name no pooling factors the mean numbers of ids of their features, or 1."""
    return [
        replace(table, pooling_factors=tuple(means.get(feature, 1.0) for feature in table.features))
        if not table.pooling_factors and means.keys() & set(table.features)
        else table
        for table in tables
    ]


def in_order(tables: Sequence[Table], order: Mapping[str, Sequence[str]]) -> list[Table]:
    """Sorts ``tables``, and the features of each, into the ``order`` in which a model reads them (table → features).

    A model's weights depend on this order. Tables and features that ``order`` does not name come last.
    """
    ordered, names = [], [*order]
    for table in sorted(tables, key=lambda each: _place(each.name, names)):
        known = order.get(table.name, ())
        places = sorted(range(len(table.features)), key=lambda place: _place(table.features[place], known))
        features = tuple(table.features[place] for place in places)
        factors = tuple(table.pooling_factors[place] for place in places if table.pooling_factors)
        ordered.append(replace(table, features=features, pooling_factors=factors))
    return ordered


def _place(name: str, names: Sequence[str]) -> int:
    return names.index(name) if name in names else len(names)


RENAMED = "__"
"""The end of the names under which torch keeps tables that it cannot keep under their own."""


def table_of(parameter: str) -> str | None:
    """The table that ``parameter`` (a dotted name in a model) belongs to; None for the dense part's parameters.

    torchrec names them ``….embedding_bags.<table>.weight``, or ``….embeddings.<table>.weight`` if vectors are not
    pooled, sharded or not.
    """
    *_, kind, table, _ = ("", "", *parameter.split("."))
    return table.removesuffix(RENAMED) if kind in ("embedding_bags", "embeddings") else None


FROZEN = "frozen_bags"
"""The module of a model that has its frozen tables."""


def is_frozen(parameter: str) -> bool:
    """True if ``parameter`` (a dotted name in a model) is a table that is not trained."""
    return FROZEN in parameter.split(".")
