"""Raw columns → the columns of a dataset, by the transforms and encodings that its manifest states."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import array_of, numbers_of
from dlrm_app.dataset.dictionary import Columns, Indexed, IndexedRows, Indexer
from dlrm_app.dataset.manifest import DenseColumn, SparseColumn
from dlrm_app.preprocess.encode.dense import DenseTransforms, is_target, target_values
from dlrm_app.preprocess.encode.sparse import SparseEncoder, expand
from dlrm_app.preprocess.read.fields import MISSING_KEY
from dlrm_app.preprocess.read.parser import RawColumns
from dlrm_app.preprocess.read.spec import Spec, list_slots

_IDS = pa.int32()
_LISTS = pa.list_(pa.field("element", _IDS, nullable=False))
_NAN = np.array(np.nan).view(np.uint64)


@dataclass(frozen=True)
class Encoded(IndexedRows):
    """Rows of a dataset.

    ``missing`` [N + F]: the number of missing values of each dense and sparse column. ``keys``: keys of columns, and
    which of the format's sparse columns they are of; every key of each is there at least once.
    """

    missing: NDArray[np.int64]
    keys: Sequence[tuple[Columns, Sequence[int]]]


@dataclass(frozen=True)
class _OneHot:
    """The parser's keys number ``slot``, made multi-hot by ``rule`` if there is one."""

    feature: int
    slot: int
    num_embeddings: int
    rule: dict[str, Any] | None

    def expanded(self, ids: NDArray[np.int32]) -> pa.Array:
        if self.rule is None:
            return array_of(ids)
        size = self.rule["size"]
        out = expand(ids, size, self.num_embeddings, self.rule["column"])
        return _lists(np.arange(0, len(out) + 1, size), out)


@dataclass(frozen=True)
class _List:
    """The parser's lists number ``slot``."""

    feature: int
    slot: int
    encoder: SparseEncoder


@dataclass(frozen=True)
class _Bucket:
    """The buckets of dense column number ``dense``."""

    dense: int
    boundaries: NDArray[np.float64]


_Source = _OneHot | _List | _Bucket
_Part = tuple[pa.Array | int, int]
"""A column of Encoded, and how many of its values are missing."""


class Encoder:
    """Encodes rows parsed by ``spec`` as ``dense`` and ``sparse`` say; ``folder`` holds the vocabularies.

    For serving: ``Encoder(spec, manifest.dense, manifest.sparse, manifest.path)``. For the training rows of a dataset with
    target columns ``folded`` is where the values by fold lie, and ``encode`` is given the rows' folds.
    """

    def __init__(
        self,
        spec: Spec,
        dense: Sequence[DenseColumn],
        sparse: Sequence[SparseColumn],
        folder: Path,
        folded: Path | None = None,
    ) -> None:
        self._label = spec.label
        raw = [column for column in dense if not is_target(column)]
        self._num_dense = len(raw)
        self._transforms = DenseTransforms([column.transform for column in raw])
        numbers = {column.name: number for number, column in enumerate(sparse)}
        self._is_folded = folded is not None
        self._targets = [
            (number, target_values(column.transform, sparse[number].num_embeddings, folder, folded))
            for column in dense
            if is_target(column)
            for number in [numbers[column.transform["column"]]]
        ]
        """Of each target column the sparse one behind it, and its values."""
        self._sources = [_source(column, spec, folder) for column in sparse]
        one_hot = [
            (s, column) for s, column in zip(self._sources, sparse, strict=True) if isinstance(s, _OneHot)
        ]
        one_hot.sort(key=lambda pair: pair[0].slot)
        self._features = [source.feature for source, _ in one_hot]
        self._ids = SparseEncoder([column for _, column in one_hot], folder)
        self._indexer = Indexer(np.array([_NAN] * len(raw) + [MISSING_KEY] * len(one_hot), np.uint64))
        fields = [(self._label, pa.uint8())] if self._label else []
        fields += [(column.name, pa.float32()) for column in dense]
        fields += [(column.name, _LISTS if column.multi_hot else _IDS) for column in sparse]
        self.schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])

    def encode(self, raw: RawColumns, folds: NDArray[np.uint8] | None = None) -> Encoded:
        """The rows of ``raw``, which may be used again afterwards; ``folds`` of training rows of target columns."""
        raw_indexed = self._indexer.index(raw.one_hot)
        keys = [(raw_indexed.distinct.part(self._num_dense, len(raw_indexed.distinct)), self._features)]
        indexed = replace(raw_indexed, distinct=self._encode_distinct(raw_indexed.distinct))
        plain = self._encode_plain(raw.one_hot, indexed)
        columns = [array_of(raw.labels.copy())] if self._label else []
        columns += [column for column, _ in plain[: self._num_dense]]
        missing = [count for _, count in plain[: self._num_dense]]
        sparse = [self._sparse_column(source, raw, indexed, plain, keys) for source in self._sources]
        for number, values in self._targets:
            ids = _plain_ids(sparse[number][0], indexed)
            columns.append(array_of(np.asarray(values[ids, folds] if self._is_folded else values[ids])))
            missing.append(0)
        columns += [column for column, _ in sparse]
        missing += [count for _, count in sparse]
        return Encoded(self.schema, columns, indexed, len(raw.labels), np.array(missing, np.int64), keys)

    def _encode_distinct(self, distinct: Columns) -> Columns:
        """The bits of what distinct raw values become."""
        dense, _ = self._transforms.apply(distinct.part(0, self._num_dense).view(np.float64))
        ids, _ = self._ids.apply(distinct.part(self._num_dense, len(distinct)))
        return replace(distinct, values=np.concatenate([dense.view(np.uint32), ids.view(np.uint32)]))

    def _encode_plain(self, raw: Columns, indexed: Indexed) -> list[_Part]:
        """Encodes the ``raw`` columns: (values, or its own number if it is numbered; the number of missing values).

        All columns in one compiled call each for dense and sparse: for a few rows, calls are what takes time.
        """
        is_plain = indexed.distinct.begins == indexed.distinct.ends
        rest = raw.where(is_plain)
        dense, missing_dense = self._transforms.apply(rest.part(0, self._num_dense).view(np.float64))
        ids, missing_ids = self._ids.apply(rest.part(self._num_dense, len(rest)))
        missing = np.where(is_plain, np.concatenate([missing_dense, missing_ids]), indexed.num_missing)
        ends = (rest.ends - rest.begins).cumsum()
        behind_dense = ends[self._num_dense - 1] if self._num_dense else 0
        columns: list[pa.Array | int] = []
        for number, (begin, end) in enumerate(zip([0, *ends.tolist()], ends.tolist(), strict=False)):
            if not is_plain[number]:
                columns.append(number)
            elif number < self._num_dense:
                columns.append(array_of(dense[begin:end]))
            else:
                columns.append(array_of(ids[begin - behind_dense : end - behind_dense]))
        return list(zip(columns, missing.tolist(), strict=True))

    def _sparse_column(
        self, source: _Source, raw: RawColumns, indexed: Indexed, plain: list[_Part], keys: list[Any]
    ) -> _Part:
        """(ids or lists of ids, how many are missing); adds the column's keys to ``keys``, if they are not there."""
        if isinstance(source, _Bucket):
            return _buckets(raw.dense[source.dense], source.boundaries)
        if isinstance(source, _List):
            ends = raw.list_ends[source.slot]
            column_keys = Columns.joined([raw.list_keys[source.slot, : ends[-1]]])
            keys.append((column_keys, [source.feature]))
            ids, _ = source.encoder.apply(column_keys)
            return _lists(ends, ids), int((ends[1:] == ends[:-1]).sum())
        number = self._num_dense + source.slot
        column, count = plain[number]
        if not isinstance(column, int):
            keys.append((raw.one_hot.part(number, number + 1), [source.feature]))
        if source.rule is None:
            return column, count
        return source.expanded(_plain_ids(column, indexed)), count


def _plain_ids(column: pa.Array | int, indexed: Indexed) -> NDArray[Any]:
    """The ids of a one-hot column, which may be numbered."""
    return indexed.values(column, np.int32) if isinstance(column, int) else numbers_of(column)


def _source(column: SparseColumn, spec: Spec, folder: Path) -> _Source:
    """Finds the raw values of a column, and what is special in its encoding."""
    encoding = column.encoding
    if encoding["kind"] == "bucket":
        dense = [dense.name for dense in spec.dense].index(encoding["column"])
        return _Bucket(dense, np.array(encoding["boundaries"], np.float64))
    feature = [sparse.name for sparse in spec.sparse].index(column.name)
    is_list, slot = list_slots(spec)[column.name]
    if is_list:
        return _List(feature, slot, SparseEncoder([column], folder))
    return _OneHot(feature, slot, column.num_embeddings, encoding.get("multi_hot"))


def _lists(ends: NDArray[np.int64], ids: NDArray[np.int32]) -> pa.Array:
    return pa.ListArray.from_arrays(array_of(ends.astype(np.int32)), array_of(ids), type=_LISTS)


def _buckets(values: NDArray[np.float64], boundaries: NDArray[np.float64]) -> tuple[pa.Array, int]:
    """0 for a missing value, else 1 + how many boundaries do not exceed it."""
    missing = np.isnan(values)
    ids = np.searchsorted(boundaries, values, side="right").astype(np.int32) + 1
    ids[missing] = 0
    return array_of(ids), int(missing.sum())
