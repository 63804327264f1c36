"""Raw columns → the columns of a dataset, by the transforms and encodings in its manifest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import LISTS, array_of, numbers_of, shard_schema, split_keys
from dlrm_app.dataset.dictionary import Columns, Indexed, IndexedRows, Indexer
from dlrm_app.dataset.manifest import DenseColumn, KeptColumn, SparseColumn
from dlrm_app.preprocessing.encode.dense import DenseTransforms, is_target, target_values
from dlrm_app.preprocessing.encode.sparse import SparseEncoder, expand
from dlrm_app.preprocessing.read.fields import MISSING_KEY
from dlrm_app.preprocessing.read.parser import RawColumns
from dlrm_app.preprocessing.read.spec import Spec, list_slots

_NAN = np.array(np.nan).view(np.uint64)

_Keys = tuple[Columns, Sequence[int]]
"""(keys of columns, numbers of their sparse columns in the format); every key of a column occurs at least once."""
_Part = tuple[pa.Array | int, int]
"""(a column of Encoded, the number of its missing values)."""


@dataclass(frozen=True)
class Encoded(IndexedRows):
    """Encoded rows. ``missing`` [N + F]: the number of missing values of each dense and sparse column."""

    missing: NDArray[np.int64]
    keys: Sequence[_Keys]


@dataclass(frozen=True)
class _HalfEncoded:
    """Rows whose one-hot values are encoded, as ``indexed`` or ``plain`` columns. ``keys``: the keys seen so far."""

    raw: RawColumns
    indexed: Indexed
    plain: list[_Part]
    keys: list[_Keys]

    def ids(self, column: pa.Array | int) -> NDArray[Any]:
        """The ids of a one-hot column, plain or numbered."""
        return self.indexed.values(column, np.int32) if isinstance(column, int) else numbers_of(column)


class Encoder:
    """Encodes rows parsed by ``spec`` into the columns ``dense`` and ``sparse``; ``folder`` holds the vocabularies.

    For serving: ``Encoder(spec, manifest.dense, manifest.sparse, manifest.path)``. For the training rows of a dataset with
    target columns, ``folded`` is the folder with values by fold, and ``encode`` needs the rows' folds. ``kept``: columns whose keys
    stand beside the ids.
    """

    def __init__(
        self,
        spec: Spec,
        dense: Sequence[DenseColumn],
        sparse: Sequence[SparseColumn],
        folder: Path,
        folded: Path | None = None,
        kept: Sequence[KeptColumn] = (),
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
        """(number of its sparse column, values) for each target column."""
        one_hot: dict[int, tuple[int, SparseColumn]] = {}  # slot: (number in the format, column)
        self._ways = [self._way(column, spec, folder, one_hot) for column in sparse]
        features = [one_hot[slot] for slot in sorted(one_hot)]
        self._features = [number for number, _ in features]
        self._ids = SparseEncoder([column for _, column in features], folder)
        self._indexer = Indexer(np.array([_NAN] * len(raw) + [MISSING_KEY] * len(one_hot), np.uint64))
        self._kept = [list_slots(spec)[column.name][1] for column in kept]
        self.schema = shard_schema(self._label, dense, sparse, kept)

    def _way(
        self, column: SparseColumn, spec: Spec, folder: Path, one_hot: dict[int, tuple[int, SparseColumn]]
    ) -> Callable[[_HalfEncoded], _Part]:
        """The function that makes a column; one-hot columns are added to ``one_hot``."""
        if column.encoding["kind"] == "bucket":
            number = [dense.name for dense in spec.dense].index(column.encoding["column"])
            return partial(_buckets, number, np.array(column.encoding["boundaries"], np.float64))
        feature = [sparse.name for sparse in spec.sparse].index(column.name)
        is_list, slot = list_slots(spec)[column.name]
        if is_list:
            return partial(_list_column, feature, slot, SparseEncoder([column], folder))
        one_hot[slot] = feature, column
        return partial(_one_hot_column, feature, self._num_dense + slot, column)

    def encode(self, raw: RawColumns, folds: NDArray[np.uint8] | None = None) -> Encoded:
        """Encodes the rows of ``raw``, whose memory may be reused afterwards. ``folds``: the training rows' folds, for target columns."""
        num_dense, indexed = self._num_dense, self._indexer.index(raw.one_hot)
        distinct = indexed.distinct
        keys: list[_Keys] = [(distinct.part(num_dense, len(distinct)), self._features)]
        dense, ids, _ = self._apply(distinct)
        bits = np.concatenate([dense.view(np.uint32), ids.view(np.uint32)])
        indexed = replace(indexed, distinct=replace(distinct, values=bits))
        plain = self._encode_plain(raw.one_hot, indexed)
        rows = _HalfEncoded(raw, indexed, plain, keys)
        sparse = [way(rows) for way in self._ways]
        labels = [array_of(raw.labels.copy())] if self._label else []
        targets = []
        for number, values in self._targets:
            at = rows.ids(sparse[number][0])
            targets.append((array_of(np.asarray(values[at, folds] if self._is_folded else values[at])), 0))
        parts = [*plain[:num_dense], *targets, *sparse]
        columns, missing = [*labels, *(column for column, _ in parts)], [count for _, count in parts]
        columns += [part for slot in self._kept for part in split_keys(raw.keys[slot])]
        return Encoded(self.schema, columns, indexed, len(raw.labels), np.array(missing, np.int64), keys)

    def _apply(self, raw: Columns) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.int64]]:
        """Returns (dense values of all columns, ids of all columns, number of missing values of each).

        Each takes one compiled call: with few rows, calls take most of the time.
        """
        dense, missing_dense = self._transforms.apply(raw.part(0, self._num_dense).view(np.float64))
        ids, missing_ids = self._ids.apply(raw.part(self._num_dense, len(raw)))
        return dense, ids, np.concatenate([missing_dense, missing_ids])

    def _encode_plain(self, raw: Columns, indexed: Indexed) -> list[_Part]:
        """Encodes the ``raw`` columns. Returns for each (values, or the column's number if it is indexed; number of missing values)."""
        is_plain = indexed.distinct.begins == indexed.distinct.ends
        rest = raw.where(is_plain)
        dense, ids, missing = self._apply(rest)
        lengths = rest.ends - rest.begins
        values = _cut(dense, lengths[: self._num_dense]) + _cut(ids, lengths[self._num_dense :])
        columns = [
            array_of(v) if plain else n for n, (v, plain) in enumerate(zip(values, is_plain, strict=True))
        ]
        return list(zip(columns, np.where(is_plain, missing, indexed.num_missing).tolist(), strict=True))


def _cut(values: NDArray[Any], lengths: NDArray[np.int64]) -> list[NDArray[Any]]:
    ends = lengths.cumsum().tolist()
    return [values[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def _one_hot_column(feature: int, number: int, column: SparseColumn, rows: _HalfEncoded) -> _Part:
    """The ids of one-hot column ``number``, or the lists that its rule makes from them."""
    ids, missing = rows.plain[number]
    if not isinstance(ids, int):
        rows.keys.append((rows.raw.one_hot.part(number, number + 1), [feature]))
    rule = column.encoding.get("multi_hot")
    if rule is None:
        return ids, missing
    size = rule["size"]
    out = expand(rows.ids(ids), size, column.num_embeddings, rule["column"])
    return _lists(np.arange(0, len(out) + 1, size), out), missing


def _list_column(feature: int, slot: int, encoder: SparseEncoder, rows: _HalfEncoded) -> _Part:
    """The ids of the parser's list column ``slot``."""
    ends, list_keys, _ = rows.raw.lists[slot]
    keys = Columns.joined([list_keys[: ends[-1]]])
    rows.keys.append((keys, [feature]))
    return _lists(ends, encoder.apply(keys)[0]), int((ends[1:] == ends[:-1]).sum())


def _buckets(number: int, boundaries: NDArray[np.float64], rows: _HalfEncoded) -> _Part:
    """The buckets of dense column ``number``: 0 for a missing value, otherwise 1 + the number of boundaries up to the value."""
    values = rows.raw.dense[number]
    missing = np.isnan(values)
    ids = np.searchsorted(boundaries, values, side="right").astype(np.int32) + 1
    ids[missing] = 0
    return array_of(ids), int(missing.sum())


def _lists(ends: NDArray[np.int64], ids: NDArray[np.int32]) -> pa.Array:
    return pa.ListArray.from_arrays(array_of(ends.astype(np.int32)), array_of(ids), type=LISTS)
