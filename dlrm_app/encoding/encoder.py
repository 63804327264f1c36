"""Raw columns → the columns of a dataset, by the transforms and encodings in its manifest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import Bags, shard_schema, split_keys, time_keys
from dlrm_app.dataset.dictionary import Indexed, IndexedColumn, IndexedRows, Indexer, JaggedColumns
from dlrm_app.dataset.manifest import TIME, DenseColumn, KeptColumn, SparseColumn
from dlrm_app.dataset.vector_columns import VectorColumn
from dlrm_app.encoding.dense import DenseTransforms, is_target, target_values
from dlrm_app.encoding.sparse import RARE_ID, SparseEncoder, expand
from dlrm_app.encoding.vectors import encode_vectors, look_up_vectors
from dlrm_app.logs.raw_columns import RawColumns, RawList
from dlrm_app.logs.spec import LogColumn, Spec, list_slots
from dlrm_app.logs.strings import MISSING_KEY

S = TypeVar("S", bound=np.generic)
_NAN = np.array(np.nan).view(np.uint64)


class EncodedColumn(NamedTuple):
    """A column of encoded rows: its values, how many of them are missing, and how many no vocabulary has seen.

    ``keys``: the keys of a sparse column, each at least once; None unless they are wanted. A named tuple, because with
    few rows the making of objects takes most of the time.
    """

    values: NDArray[Any] | Bags | IndexedColumn
    num_missing: int
    num_unseen: int = 0
    keys: NDArray[np.uint64] | None = None

    def ids(self) -> NDArray[np.int32]:
        """The ids [R] of a one-hot column."""
        values = self.values
        assert not isinstance(values, Bags), "the column has one value"
        return values.values(np.int32) if isinstance(values, IndexedColumn) else values


@dataclass(frozen=True)
class Encoded(IndexedRows):
    """Encoded rows.

    ``missing`` [N + F + V]: the number of missing values of each dense and sparse column, and of vectors.
    ``unseen`` [N + F + V]: the number of values that no vocabulary has seen; zeros unless they are counted.
    ``keys``: number of a sparse column in the format → its keys, each at least once; empty unless they are wanted.
    """

    missing: NDArray[np.int64]
    unseen: NDArray[np.int64]
    keys: Mapping[int, NDArray[np.uint64]]


class _ColumnEncoder(Protocol):
    @property
    def feature(self) -> int | None:
        """The number of the sparse column in the format; None for a column that is made of a dense one."""

    def encode(self, raw: RawColumns, one_hot: Sequence[EncodedColumn]) -> EncodedColumn:
        """Encodes a sparse column. ``one_hot``: the ids of the parser's columns of one value, in their order."""


@dataclass(frozen=True)
class _OneHotEncoder:
    """Encodes the parser's column ``slot``; a multi-hot rule makes a list of each id."""

    slot: int
    feature: int
    column: SparseColumn

    def encode(self, raw: RawColumns, one_hot: Sequence[EncodedColumn]) -> EncodedColumn:
        encoded, rule = one_hot[self.slot], self.column.encoding.get("multi_hot")
        if rule is None:
            return encoded
        out = expand(encoded.ids(), rule["size"], self.column.num_embeddings, rule["column"])
        return encoded._replace(values=_lists(np.arange(0, len(out) + 1, rule["size"]), out))


@dataclass(frozen=True)
class _ListEncoder:
    slot: int
    feature: int
    ids: SparseEncoder

    def encode(self, raw: RawColumns, one_hot: Sequence[EncodedColumn]) -> EncodedColumn:
        lists = raw.lists[self.slot]
        ends, (ids, _, unseen) = lists.ends, self.ids.apply_to_lists(lists)
        num_empty = int((ends[1:] == ends[:-1]).sum())
        return EncodedColumn(_lists(ends, ids), num_empty, int(unseen[0]), lists.elements)


@dataclass(frozen=True)
class _VectorEncoder:
    """Encodes the parser's column ``slot`` by the vocabulary of vectors; rows without any count as missing."""

    slot: int
    is_list: bool
    ids: SparseEncoder
    feature: None = None

    def encode(self, raw: RawColumns, one_hot: Sequence[EncodedColumn]) -> EncodedColumn:
        return EncodedColumn(*look_up_vectors(raw, self.slot, self.is_list, self.ids))


@dataclass(frozen=True)
class _BucketEncoder:
    """Encodes dense column ``number`` by buckets: 0 for a missing value, else 1 + the number of boundaries up to it."""

    number: int
    boundaries: NDArray[np.float32 | np.float64]
    feature: None = None

    def encode(self, raw: RawColumns, one_hot: Sequence[EncodedColumn]) -> EncodedColumn:
        values = raw.dense[self.number].astype(self.boundaries.dtype)
        missing = np.isnan(values)
        ids = np.searchsorted(self.boundaries, values, side="right").astype(np.int32) + 1
        ids[missing] = 0
        return EncodedColumn(ids, int(missing.sum()))


class Encoder:
    """Encodes rows parsed by ``spec`` into the columns ``dense`` and ``sparse``; ``folder`` holds the vocabularies.

    For serving: ``Encoder(spec, manifest.dense, manifest.sparse, manifest.path)``. For the training rows of a dataset
    with target columns, ``folded`` is the folder with values by fold, and ``encode`` needs the rows' folds. ``kept``:
    columns whose keys are stored beside the ids.
    """

    def __init__(
        self,
        spec: Spec,
        dense: Sequence[DenseColumn],
        sparse: Sequence[SparseColumn],
        folder: Path,
        folded: Path | None = None,
        kept: Sequence[KeptColumn] = (),
        vectors: Sequence[VectorColumn] = (),
    ) -> None:
        self._label, self._weight = spec.label, spec.weight
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
        slots = list_slots(spec)
        places = {name: (feature, *slots[name]) for feature, name in enumerate(slots)}
        self._sparse = [_column_encoder(column, places, spec.dense, folder) for column in sparse]
        one_hot = sorted(
            (each for each in self._sparse if isinstance(each, _OneHotEncoder)), key=lambda each: each.slot
        )
        self._ids = SparseEncoder([each.column for each in one_hot], folder)
        self._indexer = Indexer(np.array([_NAN] * len(raw) + [MISSING_KEY] * len(one_hot), np.uint64))
        times = {column.name: number for number, column in enumerate(spec.times)}
        self._kept = [
            (column.kind == TIME, times[column.name] if column.kind == TIME else slots[column.name][1])
            for column in kept
        ]
        weights = [column.name for column in spec.element_weights]
        self._weights = [weights.index(column.weights) for column in sparse if column.weights]
        """The numbers of the element weights that are stored, in the order of the sparse columns."""
        others = [column.name for column in spec.other_labels]
        by_row = [column.name for column in spec.vectors]
        self._vectors = [(by_row.index(column.name), column) for column in vectors]
        self.schema = shard_schema(self._label, dense, sparse, kept, self._weight, others, vectors)

    def encode(
        self,
        raw: RawColumns,
        folds: NDArray[np.uint8] | None = None,
        *,
        wants_keys: bool = False,
        counts_unseen: bool = False,
    ) -> Encoded:
        """Encodes the rows of ``raw``. Their memory may be reused afterwards, except for keys that are wanted.

        ``folds``: the training rows' folds, for target columns.
        """
        columns, indexed = self._encode_one_hot(raw.one_hot, wants_keys, counts_unseen)
        one_hot = columns[self._num_dense :]
        sparse = [column.encode(raw, one_hot) for column in self._sparse]
        made = [*columns[: self._num_dense], *self._encode_targets(sparse, folds), *sparse]
        labels = [raw.labels.copy()] if self._label else []
        # all missing labels get the same NaN, because the bits of NaNs in logs differ
        labels += [np.where(np.isnan(each), np.nan, each).astype(np.float32) for each in raw.other_labels]
        labels += [raw.weights.astype(np.float32)] if self._weight else []
        weights = [_weight_lists(raw.element_weights[number]) for number in self._weights]
        vectors = [
            EncodedColumn(*encode_vectors(raw.vectors[number], column)) for number, column in self._vectors
        ]
        kept = [
            part
            for is_time, slot in self._kept
            for part in split_keys(time_keys(raw.times[slot]) if is_time else raw.keys[slot])
        ]
        return Encoded(
            self.schema,
            [*labels, *(c.values for c in made), *weights, *(c.values for c in vectors), *kept],
            indexed,
            len(raw.labels),
            np.array([column.num_missing for column in (*made, *vectors)], np.int64),
            np.array([c.num_unseen if counts_unseen else 0 for c in (*made, *vectors)], np.int64),
            self._keys(sparse) if wants_keys else {},
        )

    def _keys(self, sparse: Sequence[EncodedColumn]) -> dict[int, NDArray[np.uint64]]:
        return {
            encoder.feature: column.keys
            for encoder, column in zip(self._sparse, sparse, strict=True)
            if encoder.feature is not None and column.keys is not None
        }

    def _encode_one_hot(
        self, raw: JaggedColumns[np.uint64], wants_keys: bool, counts_unseen: bool
    ) -> tuple[list[EncodedColumn], Indexed[np.uint32]]:
        """Returns (the dense columns, then the ids of one-hot columns; the index of those whose values repeat).

        A column whose values repeat is encoded by its distinct values, any other value by value.
        """
        indexed = self._indexer.index(raw)
        distinct = indexed.distinct
        dense, ids, _, unseen = self._apply(distinct)
        repeats = counts_unseen & (unseen > 0)
        bits = np.concatenate([dense.view(np.uint32), ids.view(np.uint32)])
        encoded = Indexed(
            indexed.codes, JaggedColumns(bits, distinct.begins, distinct.ends), indexed.num_missing
        )
        is_plain = distinct.begins == distinct.ends
        rest = raw.where(is_plain)
        dense, ids, missing, unseen = self._apply(rest)
        lengths = rest.ends - rest.begins
        arrays = _cut(dense, lengths[: self._num_dense]) + _cut(ids, lengths[self._num_dense :])
        num_missing = np.where(is_plain, missing, indexed.num_missing).tolist()
        num_unseen = unseen.tolist()
        for c in np.flatnonzero(repeats).tolist():
            num_unseen[c] = int(np.count_nonzero(encoded.values(c, np.int32) == RARE_ID))
        columns = [
            EncodedColumn(
                values if plain else IndexedColumn(encoded, c),
                num_missing[c],
                num_unseen[c],
                (raw if plain else distinct)[c] if wants_keys else None,
            )
            for c, (values, plain) in enumerate(zip(arrays, is_plain.tolist(), strict=True))
        ]
        return columns, encoded

    def _apply(
        self, raw: JaggedColumns[np.uint64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Returns (dense values of all columns, ids of all columns, number of missing values of each, of unseen ones).

        All dense columns take one compiled call and all ids another: with few rows, calls take most of the time.
        """
        dense, missing_dense = self._transforms.apply(raw.part(0, self._num_dense).view(np.float64))
        ids, missing_ids, unseen = self._ids.apply(raw.part(self._num_dense, len(raw)))
        missing = np.concatenate([missing_dense, missing_ids])
        return dense, ids, missing, np.concatenate([np.zeros_like(missing_dense), unseen])

    def _encode_targets(
        self, sparse: Sequence[EncodedColumn], folds: NDArray[np.uint8] | None
    ) -> list[EncodedColumn]:
        columns = []
        for number, values in self._targets:
            at = sparse[number].ids()
            columns.append(EncodedColumn(np.asarray(values[at, folds] if self._is_folded else values[at]), 0))
        return columns


def _column_encoder(
    column: SparseColumn,
    places: Mapping[str, tuple[int, bool, int]],
    dense: Sequence[LogColumn],
    folder: Path,
) -> _ColumnEncoder:
    """The encoder of a sparse column. places: sparse column → (its number, and its slot by ``list_slots``)."""
    if column.encoding["kind"] == "bucket":
        number = [each.name for each in dense].index(column.encoding["column"])
        dtype = np.float32 if dense[number].kind == "float" else np.float64  # 9.99 may come as either
        return _BucketEncoder(number, np.array(column.encoding["boundaries"], dtype))
    if "vectors" in column.encoding:
        _, is_list, slot = places[column.encoding["derived"]["of"][0]]
        return _VectorEncoder(slot, is_list, SparseEncoder([column], folder))
    feature, is_list, slot = places[column.name]
    if is_list:
        return _ListEncoder(slot, feature, SparseEncoder([column], folder))
    return _OneHotEncoder(slot, feature, column)


def _cut(values: NDArray[S], lengths: NDArray[np.int64]) -> list[NDArray[S]]:
    ends = lengths.cumsum().tolist()
    return [values[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def _weight_lists(lists: RawList) -> Bags:
    return Bags(lists.elements.view(np.float64).astype(np.float32), lists.ends.astype(np.int32))


def _lists(ends: NDArray[np.int64], ids: NDArray[np.int32]) -> Bags:
    return Bags(ids, ends.astype(np.int32))
