"""The values of a unit, counted while they are encoded with a vocabulary that is to grow.

A value that the vocabulary lacks is given an id for now, behind the vocabulary's: the unit's first such value the first one.
Once all units are counted, ``passes/new_ids`` puts the ids that were given in their places.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlrm_app.dataset.dictionary import Columns, Indexed
from dlrm_app.kernels.compiled import njit
from dlrm_app.preprocess.encode.sparse import MISSING_ID, LookUp, mix, next_slot, reduce_hash
from dlrm_app.preprocess.read.fields import MISSING_KEY

_NO_SPANS = np.zeros((0, 2), np.int64)
_NO_COUNTS = np.zeros(0, np.int64)
_LEAST_SLOTS, _MOST_SLOTS = 1 << 10, 1 << 16
"""Slots that a table begins with."""


@dataclass(frozen=True)
class Occurrences:
    """The values of C columns in their rows. ``spans``: of each column [n, 2] or [0, 2]; ``counts``: None for one each."""

    spans: Sequence[NDArray[np.int64]]
    counts: Columns | None = None

    def of(self, column: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(counts, or none for one each; spans) of a column."""
        return _NO_COUNTS if self.counts is None else self.counts[column], self.spans[column]

    @classmethod
    def of_distinct(cls, indexed: Indexed, first: int, spans: NDArray[np.int64]) -> "Occurrences":
        """Those of the distinct values of columns from number ``first`` on; ``spans`` [C, R, 2] or [C, 0, 2]."""
        codes, distinct = indexed.codes, indexed.distinct.part(first, len(indexed.distinct))
        counts = np.zeros(len(indexed.distinct.values), np.int64)
        rows = np.zeros(len(counts) if spans.size else 0, np.int64)
        codes = codes.part(first, len(codes)).where(distinct.begins < distinct.ends)  # others are not filled
        _count_codes(codes.values, codes.begins, codes.ends, distinct.begins, counts, rows)
        chosen = [
            part[rows[begin:end]] if len(rows) else _NO_SPANS
            for part, begin, end in zip(spans, distinct.begins, distinct.ends, strict=True)
        ]
        return cls(chosen, Columns(counts, distinct.begins, distinct.ends))


@njit(nogil=True, cache=True)
def _count_codes(codes, begins, ends, distinct_begins, counts, rows):  # type: ignore[no-untyped-def]  # compiled
    """Fills ``counts`` of the distinct values and, if there is room, the row in which each is first."""
    for c in range(len(begins)):
        at = distinct_begins[c]
        known = 0
        for i in range(begins[c], ends[c]):
            code = codes[i]
            counts[at + code] += 1
            if code == known:
                if len(rows) > 0:
                    rows[at + code] = i - begins[c]
                known += 1


class UnitValues:
    """Values of a column in one unit: ids, and counts of the rows of studied splits."""

    def __init__(
        self,
        vocabulary: tuple[NDArray[np.uint64], NDArray[np.int32]],
        num_ids: int,
        *,
        keeps_spans: bool = False,
    ) -> None:
        """``vocabulary``: of ``sparse.load_vocabulary``; ``num_ids``: from which number on ids are for now."""
        self._vocabulary, self._num_ids = vocabulary, num_ids
        self._used = np.zeros(2, np.int64)
        """Values in the table; those of them that the vocabulary lacks."""
        self.keeps_spans = keeps_spans
        self._table = _empty(min(max(2 * num_ids, _LEAST_SLOTS), _MOST_SLOTS), keeps_spans)

    def look_up(
        self,
        keys: NDArray[np.uint64],
        counts: NDArray[np.int64],
        spans: NDArray[np.int64],
        is_studied: bool,
        out: NDArray[np.int32],
    ) -> int:
        """Writes the id of each of ``keys`` [n]; gives how many are missing. They are counted if they are of a studied split."""
        at = missing = 0
        while True:
            at, count = _look_up(
                keys,
                counts,
                spans,
                is_studied,
                at,
                self._vocabulary,
                self._num_ids,
                self._table,
                self._used,
                out,
            )
            missing += count
            if at == len(keys):
                return missing
            old, self._table = self._table, _empty(4 * len(self._table[0]), self.keeps_spans)
            _move(old, self._table)

    @property
    def num_newcomers(self) -> int:
        """Values that the vocabulary lacks."""
        return int(self._used[1])

    def known(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(ids, counts) of the values seen that the vocabulary has."""
        _, ids, counts, _ = self._table
        places = np.flatnonzero((ids >= 0) & (ids < self._num_ids))
        return ids[places], counts[places]

    def newcomers(self) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
        """(keys, counts, spans) of the values that it lacks, by their ids for now."""
        keys, ids, counts, spans = self._table
        places = np.flatnonzero(ids >= self._num_ids)
        places = places[np.argsort(ids[places])]
        return keys[places], counts[places], spans[places] if self.keeps_spans else _NO_SPANS


@dataclass(frozen=True)
class CountedUnitValues:
    """Values of all features with a vocabulary, by their numbers among the format's sparse columns."""

    features: Mapping[int, UnitValues]
    is_studied: bool

    def look_up(self, features: Sequence[int], occurrences: Occurrences) -> LookUp:
        """Looks up, and counts, values of columns of ``features``."""

        def look_up(column: int, keys: NDArray[np.uint64], out: NDArray[np.int32]) -> int:
            counts, spans = occurrences.of(column)
            return self.features[features[column]].look_up(keys, counts, spans, self.is_studied, out)

        return look_up


_Table = tuple[NDArray[np.uint64], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]
"""By slot: key, id (-1: free), count, span."""


def _empty(size: int, keeps_spans: bool) -> _Table:
    ids, spans = np.full(size, -1, np.int32), np.zeros((size if keeps_spans else 0, 2), np.int64)
    return np.zeros(size, np.uint64), ids, np.zeros(size, np.int64), spans


@njit(nogil=True, cache=True)
def _look_up(keys, counts, spans, is_studied, start, vocabulary, num_ids, table, used, out):  # type: ignore[no-untyped-def]  # compiled
    """Goes on from ``start`` until the table is half full: (how far it came, how many keys were missing)."""
    table_keys, table_ids, table_counts, table_spans = table
    known_keys, known_ids = vocabulary
    size, known_size = len(table_ids), len(known_ids)
    missing = 0
    for i in range(start, len(keys)):
        key = keys[i]
        if key == MISSING_KEY:
            out[i] = MISSING_ID
            missing += 1
            continue
        hashed = mix(key)
        slot = np.int64(reduce_hash(hashed, size))
        while table_ids[slot] >= 0 and table_keys[slot] != key:
            slot = next_slot(slot, size)
        if table_ids[slot] < 0:
            if 2 * used[0] >= size:
                return i, missing
            place = np.int64(reduce_hash(hashed, known_size))
            while known_ids[place] >= 0 and known_keys[place] != key:
                place = next_slot(place, known_size)
            number = known_ids[place]
            if number < 0:
                number = np.int32(num_ids + used[1])
                used[1] += 1
                if len(table_spans) > 0:
                    table_spans[slot, 0] = spans[i, 0]
                    table_spans[slot, 1] = spans[i, 1]
            table_keys[slot] = key
            table_ids[slot] = number
            used[0] += 1
        if is_studied:
            table_counts[slot] += counts[i] if len(counts) > 0 else 1
        out[i] = table_ids[slot]
    return len(keys), missing


@njit(nogil=True, cache=True)
def _move(old, new):  # type: ignore[no-untyped-def]  # compiled
    keys, ids, counts, spans = old
    new_keys, new_ids, new_counts, new_spans = new
    size = len(new_ids)
    for i in range(len(ids)):
        if ids[i] >= 0:
            slot = np.int64(reduce_hash(mix(keys[i]), size))
            while new_ids[slot] >= 0:
                slot = next_slot(slot, size)
            new_keys[slot] = keys[i]
            new_ids[slot] = ids[i]
            new_counts[slot] = counts[i]
            if len(spans) > 0:
                new_spans[slot, 0] = spans[i, 0]
                new_spans[slot, 1] = spans[i, 1]
