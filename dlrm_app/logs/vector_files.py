"""Parquet files of vectors by raw value, made elsewhere: the columns ``value``, as raw logs have it, and ``vector``.

Shapes: R values, W numbers of a vector.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import numbers_of
from dlrm_app.errors import DataError, Problem, first_line
from dlrm_app.logs.arrow_rows import keys_of

_ROWS = 1 << 16
"""Rows of a file read at a time."""


class Vectors(NamedTuple):
    """The raw ``values`` [R], their ``keys`` [R], and their ``vectors`` [R, W]."""

    values: pa.Array
    keys: NDArray[np.uint64]
    vectors: NDArray[np.float32]


@dataclass(frozen=True)
class VectorFile:
    """The file ``path``, with values of ``kind`` (of sparse columns). ``key``: the setting that names it."""

    path: str
    kind: str
    key: str

    def problem(self) -> Problem | None:
        """The reason why the file cannot be read, or lacks a column, if there is one."""
        try:
            schema = pq.read_schema(self.path)
        except (pa.ArrowException, OSError) as error:
            reason = getattr(error, "strerror", None) or first_line(error)
            return Problem(self.key, f"cannot be read ({reason})", "name a Parquet file, or leave it out")
        if {"value", "vector"} <= {*schema.names} and _is_vector(schema.field("vector").type):
            return None
        has = ", ".join(f"{field.name}: {field.type}" for field in schema)
        return Problem(self.key, f"must have the columns value and vector, a list of floats, it has {has}")

    def read(self) -> Iterator[Vectors]:
        """The values and vectors, many at a time.

        Raises DataError for values of another kind, vectors of several widths, and NaN and inf.
        """
        widths: set[int] = set()
        for batch in self._batches(["value", "vector"]):
            lists = batch.column("vector")
            if lists.null_count:
                raise DataError(Problem(self.key, "has values without a vector", "remove them"))
            flat = numbers_of(lists.flatten()).astype(np.float32)
            widths |= {*np.unique(_lengths(lists)).tolist()}
            if len(widths) > 1:
                rule = f"has vectors of {' and '.join(map(str, sorted(widths)[:3]))} numbers"
                raise DataError(Problem(self.key, rule, "write all with one width"))
            if not np.isfinite(flat).all():
                raise DataError(Problem(self.key, "holds NaN or inf", "remove such vectors"))
            values = batch.column("value")
            yield Vectors(values, self._keys(values), flat.reshape(len(batch), -1))

    def read_keys(self) -> Iterator[tuple[pa.Array, NDArray[np.uint64]]]:
        """(the values, their keys), many at a time, without reading vectors."""
        for batch in self._batches(["value"]):
            yield batch.column("value"), self._keys(batch.column("value"))

    def _keys(self, values: pa.Array) -> NDArray[np.uint64]:
        keys, fault = keys_of(values, self.kind)
        if fault is not None:
            rule = f"has values of another kind: {fault}"
            raise DataError(Problem(self.key, rule, "correct or remove them"))
        if values.null_count:
            raise DataError(Problem(self.key, "has vectors without a value", "remove them"))
        return keys

    def _batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        try:
            with pq.ParquetFile(self.path) as file:
                yield from file.iter_batches(_ROWS, columns=columns)
        except (pa.ArrowException, OSError) as error:
            raise DataError(Problem(self.key, f"cannot be read ({first_line(error)})")) from error


def _is_vector(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return is_list and pa.types.is_floating(kind.value_type)


def _lengths(lists: pa.Array) -> NDArray[np.int64]:
    import pyarrow.compute as pc  # takes 0.04 s, which only files of vectors need

    return numbers_of(pc.list_value_length(lists)).astype(np.int64)
