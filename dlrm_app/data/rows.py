"""Decoded rows as contiguous numpy arrays, and the two things done to them: reordering and joining."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Bags:
    """A multi-hot feature: row i holds ``values[offsets[i]:offsets[i + 1]]``."""

    values: NDArray[np.int32]
    offsets: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rows:
    """``dense`` [rows, N], ``one_hot`` [F1, rows], a Bags per multi-hot feature, ``labels`` [rows].

    One-hot ids lie feature by feature, as a KeyedJaggedTensor wants them, in int32 as in the files: a table
    has fewer than 2^31 rows, and 64 bits would double memory, copies to the device and the exchange between
    ranks.
    """

    dense: NDArray[np.float32]
    one_hot: NDArray[np.int32]
    bags: list[Bags]
    labels: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.dense)


RowRange = tuple[Rows, int, int]
"""The rows [start, stop) of a Rows."""


def reorder(values: NDArray[Any], order: NDArray[np.int64] | None) -> NDArray[Any]:
    """A column in another order: value i of the result is value ``order[i]``. None keeps the order."""
    # column by column, in pieces that stay in the cache; a whole matrix taken at once costs twice the time
    return values if order is None else np.take(values, order)


def reorder_bags(bags: Bags, order: NDArray[np.int64] | None) -> Bags:
    """A multi-hot feature in another order, as ``reorder``."""
    if order is None:
        return bags
    lengths = np.diff(bags.offsets)[order]
    offsets = _offsets(lengths)
    # the index of every value in the old array: where its row began, plus its index within the row
    shift = np.repeat(bags.offsets[:-1][order] - offsets[:-1], lengths)
    return Bags(bags.values[np.arange(offsets[-1]) + shift], offsets)


def join(pieces: Sequence[RowRange]) -> Rows:
    """The rows of all ``pieces``, at least one, one behind the other; ranges are copied, not columns."""
    first = pieces[0][0]
    size = sum(stop - start for _, start, stop in pieces)
    dense = np.empty((size, first.dense.shape[1]), np.float32)
    one_hot = np.empty((first.one_hot.shape[0], size), np.int32)
    labels = np.empty(size, np.float32)
    at = 0
    for rows, start, stop in pieces:
        end = at + stop - start
        dense[at:end] = rows.dense[start:stop]
        one_hot[:, at:end] = rows.one_hot[:, start:stop]
        labels[at:end] = rows.labels[start:stop]
        at = end
    bags = [
        _join_bags([(rows.bags[index], start, stop) for rows, start, stop in pieces])
        for index in range(len(first.bags))
    ]
    return Rows(dense, one_hot, bags, labels)


def _join_bags(pieces: Sequence[tuple[Bags, int, int]]) -> Bags:
    values = [bags.values[bags.offsets[start] : bags.offsets[stop]] for bags, start, stop in pieces]
    lengths = [np.diff(bags.offsets[start : stop + 1]) for bags, start, stop in pieces]
    return Bags(np.concatenate(values), _offsets(np.concatenate(lengths)))


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
