"""Columns of raw values: what the parser of text and the reader of Arrow tables make, and the encoder takes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrm_app.dataset.dictionary import JaggedColumns
from dlrm_app.logs.codes import vector_slots
from dlrm_app.logs.derived import derive
from dlrm_app.logs.null_words import padding_key
from dlrm_app.logs.spec import LogColumn, Spec, list_slots, weight_slots
from dlrm_app.logs.strings import MISSING_KEY


class RawList(NamedTuple):
    """A column of lists. Row r holds ``keys[ends[r]:ends[r + 1]]``, with their spans."""

    ends: NDArray[np.int64]
    keys: NDArray[np.uint64]
    spans: NDArray[np.int64]

    @property
    def elements(self) -> NDArray[np.uint64]:
        """The keys of all elements; ``keys`` may have room for more."""
        return self.keys[: self.ends[-1]]

    def take(self, rows: NDArray[np.int64]) -> "RawList":
        """The lists of ``rows`` alone, given by their numbers in rising order."""
        sizes = np.diff(self.ends)
        is_taken = np.zeros(len(sizes), bool)
        is_taken[rows] = True
        items = np.flatnonzero(np.repeat(is_taken, sizes))
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[rows], dtype=np.int64)])
        return RawList(ends, self.keys[items], self.spans[items[: len(self.spans)]])

    def where(self, is_kept: NDArray[np.bool_]) -> "RawList":
        """The lists of the elements that are kept, [the number of all elements]."""
        if is_kept.all():
            return self
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(is_kept, dtype=np.int64)])
        items = np.flatnonzero(is_kept)
        return RawList(
            before[self.ends], self.keys[items], self.spans[items] if len(self.spans) else self.spans
        )

    def emptied(self, rows: NDArray[np.bool_]) -> "RawList":
        """The lists, empty where ``rows`` is True."""
        return self.where(~np.repeat(rows, np.diff(self.ends))) if rows.any() else self

    def cut(self, first: int | None, last: int | None) -> "RawList":
        """The ``first`` elements of each list, or its ``last`` ones; all if both are None."""
        most = first or last
        sizes = np.diff(self.ends)
        if most is None or not (sizes > most).any():
            return self
        cut_sizes = np.minimum(sizes, most)
        begins = self.ends[:-1] if first else self.ends[1:] - cut_sizes
        items = np.arange(self.ends[-1])
        return self.where(
            (items >= np.repeat(begins, sizes)) & (items < np.repeat(begins + cut_sizes, sizes))
        )


class RepeatedList(RawList):
    """The same list in every row, so that work on the first row's is enough."""

    __slots__ = ()

    @classmethod
    def of(cls, lists: RawList, rows: int) -> "RepeatedList":
        """The first list of ``lists`` in each of ``rows`` rows."""
        first = slice(*lists.ends[:2])
        ends = np.arange(rows + 1) * (lists.ends[1] - lists.ends[0])
        return cls(ends, np.tile(lists.keys[first], rows), np.tile(lists.spans[first], (rows, 1)))

    @property
    def first(self) -> NDArray[np.uint64]:
        """The keys of the first row's list."""
        return self.keys[: self.ends[1]]

    def where(self, is_kept: NDArray[np.bool_]) -> RawList:
        found, by_row = super().where(is_kept), is_kept.reshape(len(self.ends) - 1, -1)
        return RepeatedList(*found) if (by_row == by_row[0]).all() else found


@dataclass(frozen=True, slots=True)
class RawColumns:
    """The raw values of R rows, derived columns included.

    ``labels`` uint8 [R].
    ``dense`` float64 [N, R]: NaN if missing.
    ``keys`` uint64 [F + K, R]: MISSING_KEY if missing; those of ``spec.kept`` are the last K.
    ``one_hot`` uint64: the bits of the dense columns, then the F keys of sparse ones.
    ``spans`` int64 [F + K, R, 2], or [F + K, 0, 2] if they are not kept: the positions of the keys' values in the text.
    ``lists``: the columns of lists.
    ``times`` float64 [T, R]: seconds since 1970, NaN if missing.
    ``weights`` float64 [R]: 1 if rows have none.
    ``other_labels`` float64 [L - 1, R]: NaN if missing.
    ``element_weights``: lists whose keys are the bits of a float64 for each element of their list.
    ``vectors``: lists whose keys are the bits of the float64 numbers of each vector; empty if it is missing.
    """

    labels: NDArray[np.uint8]
    dense: NDArray[np.float64]
    keys: NDArray[np.uint64]
    one_hot: JaggedColumns[np.uint64]
    spans: NDArray[np.int64]
    lists: Sequence[RawList]
    times: NDArray[np.float64]
    weights: NDArray[np.float64]
    other_labels: NDArray[np.float64]
    element_weights: Sequence[RawList] = ()
    vectors: Sequence[RawList] = ()

    def take(self, rows: NDArray[np.int64]) -> "RawColumns":
        """Copies ``rows``, given by their numbers in rising order."""
        values = np.concatenate([self.dense.view(np.uint64)[:, rows], self.keys[:, rows]])
        begins = np.arange(len(self.one_hot)) * len(rows)
        num_dense = len(self.dense)
        return RawColumns(
            self.labels[rows],
            values[:num_dense].view(np.float64),
            values[num_dense:],
            JaggedColumns(values.reshape(-1), begins, begins + len(rows)),
            self.spans[:, rows] if self.spans.shape[1] else self.spans,
            [each.take(rows) for each in self.lists],
            self.times[:, rows],
            self.weights[rows],
            self.other_labels[:, rows],
            [each.take(rows) for each in self.element_weights],
            [each.take(rows) for each in self.vectors],
        )

    def sparse_keys(self, spec: Spec) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64]]]:
        """(keys, spans) of each sparse column; for lists, those of all rows together."""
        slots = list_slots(spec)
        for is_list, slot in (slots[column.name] for column in spec.sparse):
            if is_list:
                stop = self.lists[slot].ends[-1]
                yield self.lists[slot].keys[:stop], self.lists[slot].spans[:stop]
            else:
                yield self.keys[slot], self.spans[slot]


def raw_columns(
    spec: Spec,
    labels: NDArray[np.uint8],
    values: NDArray[np.uint64],
    rows: int,
    spans: NDArray[np.int64],
    lists: Sequence[RawList],
) -> RawColumns:
    """Makes ``rows`` rows with their derived columns.

    ``values`` [W + T + N + F + K, R or more]: ``spec.extra_numbers`` come first, ``spec.kept`` last. ``lists``: by
    ``list_slots``, then by ``weight_slots`` and ``vector_slots``.
    """
    num_extra, num_dense = len(spec.extra_numbers), len(spec.extra_numbers) + len(spec.dense)
    begins = np.arange(num_extra, len(values) - len(spec.kept)) * values.shape[1]
    numbers, keys = values[:num_dense, :rows].view(np.float64), values[num_dense:, :rows]
    list_columns = [column for column in spec.sparse if column.separator is not None]
    lists = _without_padding(spec, list_columns, lists)
    are_empty = [are_missing(each) for each in lists[: len(list_columns)]]
    cut = [
        each.emptied(rows).cut(column.first, column.last)
        for each, rows, column in zip(lists, are_empty, list_columns, strict=False)
    ]
    element_weights = [
        lists[slot].emptied(are_empty[of]).cut(column.first, column.last)
        for column, (slot, of) in zip(spec.element_weights, weight_slots(spec).values(), strict=True)
    ]
    weights = numbers[0] if spec.is_weighted else np.broadcast_to(np.float64(1), rows)
    before = num_extra - len(spec.times)
    other_labels = numbers[before - len(spec.other_labels) : before]
    times, dense = numbers[before:num_extra], numbers[num_extra:]
    derive(spec, times, dense, keys, cut)
    one_hot = JaggedColumns(values.reshape(-1), begins, begins + rows)
    vectors = [lists[slot] for slot in vector_slots(spec).values()]
    return RawColumns(
        labels, dense, keys, one_hot, spans, cut, times, weights, other_labels, element_weights, vectors
    )


def _without_padding(spec: Spec, columns: Sequence[LogColumn], lists: Sequence[RawList]) -> Sequence[RawList]:
    """``lists`` without the padding, and without its weights. ``columns``: those of the lists."""
    padded = {slot: column for slot, column in enumerate(columns) if column.padding is not None}
    if not padded:
        return lists
    # a missing element alone has no weight
    lists = [each.emptied(are_missing(each)) if slot in padded else each for slot, each in enumerate(lists)]
    is_element = {slot: lists[slot].elements != padding_key(column) for slot, column in padded.items()}
    is_element |= {slot: is_element[of] for slot, of in weight_slots(spec).values() if of in is_element}
    return [each.where(is_element[slot]) if slot in is_element else each for slot, each in enumerate(lists)]


def are_missing(lists: RawList) -> NDArray[np.bool_]:
    """True for each list whose only element is a missing value. It counts as empty: text cannot tell the two apart."""
    is_missing = lists.elements == MISSING_KEY
    sizes = np.diff(lists.ends)
    is_lone = np.zeros(len(sizes), bool)
    if is_missing.any():
        ones = np.flatnonzero(sizes == 1)
        is_lone[ones] = is_missing[lists.ends[ones]]
    return is_lone
