"""Raw columns → the columns of a dataset, by the transforms and encodings that its manifest states."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.data.manifest import DenseColumn, SparseColumn
from dlrm_app.preprocess.dense import DenseTransform
from dlrm_app.preprocess.multi_hot import expand
from dlrm_app.preprocess.parser import RawColumns
from dlrm_app.preprocess.sparse import SparseEncoder
from dlrm_app.preprocess.spec import Spec

_IDS = pa.int32()
_LISTS = pa.list_(pa.field("element", _IDS, nullable=False))


@dataclass(frozen=True)
class Encoded:
    """Rows of a dataset, and how many values of each dense and sparse column are missing [N + F]."""

    table: pa.Table
    missing: NDArray[np.int64]


class Encoder:
    """Encodes rows parsed by ``spec`` as ``dense`` and ``sparse`` say; ``folder`` holds the vocabularies.

    For serving: ``Encoder(spec, manifest.dense, manifest.sparse, manifest.path)``.
    """

    def __init__(
        self, spec: Spec, dense: Sequence[DenseColumn], sparse: Sequence[SparseColumn], folder: Path
    ) -> None:
        self._label = spec.label
        self._dense = [DenseTransform(column.transform) for column in dense]
        self._sparse = [_SparseSource(column, spec, folder) for column in sparse]
        fields = [(self._label, pa.uint8())] if self._label else []
        fields += [(column.name, pa.float32()) for column in dense]
        fields += [(column.name, _LISTS if column.multi_hot else _IDS) for column in sparse]
        self.schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])

    def encode(self, raw: RawColumns) -> Encoded:
        """The rows of ``raw``, which may be used again afterwards."""
        arrays = [pa.array(raw.labels.copy())] if self._label else []
        missing = []
        for values, transform in zip(raw.dense, self._dense, strict=True):
            column, count = transform.apply(values)
            arrays.append(pa.array(column))
            missing.append(count)
        for source in self._sparse:
            array, count = source.encode(raw)
            arrays.append(array)
            missing.append(count)
        table = pa.Table.from_arrays(arrays, schema=self.schema)
        return Encoded(table, np.array(missing, np.int64))


class _SparseSource:
    """One sparse column: where its raw values are and what they become."""

    def __init__(self, column: SparseColumn, spec: Spec, folder: Path) -> None:
        self._num_embeddings = column.num_embeddings
        self._synthetic = column.encoding.get("multi_hot")
        self._bucket_of = None
        if column.encoding["kind"] == "bucket":
            self._bucket_of = [dense.name for dense in spec.dense].index(column.encoding["column"])
            self._boundaries = np.array(column.encoding["boundaries"], np.float64)
        else:
            self._is_list, self._slot = list_slots(spec)[column.name]
            self._encoder = SparseEncoder(column.encoding, column.num_embeddings, folder)

    def encode(self, raw: RawColumns) -> tuple[pa.Array, int]:
        """(ids or lists of ids, how many are missing)."""
        if self._bucket_of is not None:
            return _buckets(raw.dense[self._bucket_of], self._boundaries)
        if self._is_list:
            ends = raw.list_ends[self._slot]
            ids, _ = self._encoder.apply(raw.list_keys[self._slot, : ends[-1]])
            return _lists(ends, ids), int((ends[1:] == ends[:-1]).sum())
        ids, count = self._encoder.apply(raw.keys[self._slot])
        if self._synthetic is None:
            return pa.array(ids), count
        size = self._synthetic["size"]
        expanded = expand(ids, size, self._num_embeddings, self._synthetic["column"])
        return _lists(np.arange(0, len(expanded) + 1, size), expanded), count


def _lists(ends: NDArray[np.int64], ids: NDArray[np.int32]) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), pa.array(ids), type=_LISTS)


def _buckets(values: NDArray[np.float64], boundaries: NDArray[np.float64]) -> tuple[pa.Array, int]:
    """0 for a missing value, else 1 + how many boundaries do not exceed it."""
    missing = np.isnan(values)
    ids = np.searchsorted(boundaries, values, side="right").astype(np.int32) + 1
    ids[missing] = 0
    return pa.array(ids), int(missing.sum())


def list_slots(spec: Spec) -> dict[str, tuple[bool, int]]:
    """For each sparse column whether the parser gives lists, and which of its arrays."""
    slots, counts = {}, [0, 0]
    for column in spec.sparse:
        is_list = column.separator is not None
        slots[column.name] = (is_list, counts[is_list])
        counts[is_list] += 1
    return slots
