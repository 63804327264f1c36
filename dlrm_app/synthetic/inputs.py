"""The inputs of a synthetic model: ids by a power law, uniform dense features, labels of a thrown coin.

As NVIDIA Merlin's distributed-embeddings draws them (examples/benchmarks/synthetic_models/synthetic_models.py,
InputGenerator); ids may repeat within a row there too. Row r is the same whatever was drawn before it, by whom.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import array_of
from dlrm_app.kernels.compiled import njit
from dlrm_app.synthetic.distribution import power_law, power_law_span, uniform

LABEL = "label"
DENSE_LIMIT = np.float32(100)
_BELOW_LIMIT = np.nextafter(DENSE_LIMIT, np.float32(0))


@dataclass(frozen=True)
class Feature:
    """A sparse feature: ``num_ids`` ids a row, each in [0, ``num_embeddings``)."""

    name: str
    num_embeddings: int
    num_ids: int

    @property
    def is_multi_hot(self) -> bool:
        """True if its column holds lists."""
        return self.num_ids > 1


@dataclass(frozen=True)
class Inputs:
    """Makes any rows of the inputs with ``num_dense`` dense ``features``, drawn with exponent ``alpha``."""

    num_dense: int
    features: Sequence[Feature]
    alpha: float
    keys: NDArray[np.uint64]
    """A stream of random numbers for the label, each dense and each sparse column, in this order."""

    @property
    def dense_names(self) -> list[str]:
        """The dense columns."""
        return [f"num_{index}" for index in range(self.num_dense)]

    @property
    def row_bytes(self) -> int:
        """The size of a row's values."""
        return 1 + 4 * (self.num_dense + sum(feature.num_ids for feature in self.features))

    @property
    def schema(self) -> pa.Schema:
        """The columns: label, dense, then sparse ones in the order of ``features``."""
        ids = pa.int32()
        lists = pa.list_(pa.field("item", ids, nullable=False))
        fields = [(LABEL, pa.uint8()), *((name, pa.float32()) for name in self.dense_names)]
        fields += [(feature.name, lists if feature.is_multi_hot else ids) for feature in self.features]
        return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])

    def rows(self, first_row: int, num_rows: int) -> pa.Table:
        """Rows from ``first_row`` on."""
        schema = self.schema
        draws = [_draw_uniform(key, first_row, num_rows) for key in self.keys[: 1 + self.num_dense]]
        columns = [array_of((draws[0] < 0.5).astype(np.uint8))]
        columns += [
            array_of(np.minimum((draw * DENSE_LIMIT).astype(np.float32), _BELOW_LIMIT)) for draw in draws[1:]
        ]
        for index, feature in enumerate(self.features, start=1 + self.num_dense):
            first, count = first_row * feature.num_ids, num_rows * feature.num_ids
            ids = array_of(
                _draw_ids(self.keys[index], first, count, feature.num_embeddings, 1.0 - self.alpha)
            )
            if feature.is_multi_hot:
                offsets = np.arange(num_rows + 1, dtype=np.int32) * feature.num_ids
                ids = pa.ListArray.from_arrays(array_of(offsets), ids, type=schema.field(index).type)
            columns.append(ids)
        return pa.Table.from_arrays(columns, schema=schema)


def make_inputs(features: Sequence[Feature], num_dense: int, alpha: float, seed: int) -> Inputs:
    """The inputs of ``seed``; a column's values depend on the seed, its index and its own settings alone."""
    generator = np.random.Generator(np.random.Philox(key=[seed, 2]))
    keys = generator.integers(2**63, size=1 + num_dense + len(features)).astype(np.uint64)
    return Inputs(num_dense, features, alpha, keys)


@njit(nogil=True, cache=True)
def _draw_uniform(key, first, count):  # type: ignore[no-untyped-def]  # compiled
    values = np.empty(count, np.float64)
    for i in range(count):
        values[i] = uniform(key, first + i)
    return values


@njit(nogil=True, cache=True)
def _draw_ids(key, first, count, rows, exponent):  # type: ignore[no-untyped-def]  # compiled
    ids = np.empty(count, np.int32)
    span = power_law_span(rows, exponent)
    for i in range(count):
        # the largest draws may round up to rows + 1
        ids[i] = min(np.int64(power_law(uniform(key, first + i), span, exponent)) - 1, rows - 1)
    return ids
