"""Decoded rows: as columns, in the order of an epoch, and ranges of them on their way into batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlrm_app.loader import gather


@dataclass(frozen=True, slots=True)
class Bags:
    """A multi-hot feature: row i holds ``values[offsets[i]:offsets[i + 1]]``."""

    values: NDArray[np.int32]
    offsets: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows as they are decoded: a contiguous array, or Bags, for each column.

    Ids are int32 as in the files: a table has fewer than 2^31 rows, and 64 bits would double memory, copies to the
    device and the exchange between ranks.
    """

    dense: Sequence[NDArray[np.float32]]
    features: Sequence[NDArray[np.int32] | Bags]
    labels: NDArray[np.uint8] | NDArray[np.float32]


@dataclass(frozen=True)
class Rows:
    """``dense`` [rows, N], the ids [rows] or Bags of each of F ``features``, ``labels`` [rows].

    All arrays are parts of ``memory``. Ids lie feature by feature, as a KeyedJaggedTensor wants them.
    """

    dense: NDArray[np.float32]
    features: list[NDArray[np.int32] | Bags]
    labels: NDArray[np.float32]
    memory: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.dense)

    @cached_property
    def addresses(self) -> NDArray[np.uint64]:
        """[2 + 2 F], as ``gather.copy_rows`` wants them."""
        addresses = [_address(self.dense), _address(self.labels)]
        for feature in self.features:
            if isinstance(feature, Bags):
                addresses += [_address(feature.values), _address(feature.offsets)]
            else:
                addresses += [_address(feature), 0]
        return np.array(addresses, np.uint64)


@dataclass(frozen=True)
class Ranges:
    """Rows of ``num_batches`` batches that follow each other, each with ``rows_per_lane`` rows of every lane.

    ``ranges`` [P, 3]: range p is rows [first, end) of ``rows[p]``, before which its lane gives so many rows to these
    batches. Ranges are in the order of the lanes, those of a lane one behind the other.
    """

    rows: Sequence[Rows]
    ranges: NDArray[np.int64]
    rows_per_lane: int
    num_batches: int

    def count(self, num_features: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(the rows of each batch [K], the ids of each batch and feature [K, F])."""
        num_rows, num_ids = (
            np.empty(self.num_batches, np.int64),
            np.empty((self.num_batches, num_features), np.int64),
        )
        gather.count_rows(self._addresses(num_features), self.ranges, self.rows_per_lane, num_rows, num_ids)
        return num_rows, num_ids

    def copy_to(
        self,
        dense: NDArray[np.float32],
        labels: NDArray[np.float32],
        ids: NDArray[np.int32],
        begins: NDArray[np.int64],
        lengths: NDArray[np.int32],
    ) -> None:
        """Copies the rows of batch k into the first rows of ``dense`` [K, B, N] and ``labels`` [K, B], and its ids.

        Those of feature f go to ``ids`` from begins[k, f] on; ``lengths`` [K, F, B] gets how many each row has. [K, F, 0]
        does without.
        """
        addresses = self._addresses(begins.shape[1])
        gather.copy_rows(addresses, self.ranges, self.rows_per_lane, dense, labels, ids, begins, lengths)

    def _addresses(self, num_features: int) -> NDArray[np.uint64]:
        none = np.empty((0, 2 + 2 * num_features), np.uint64)
        return np.stack([rows.addresses for rows in self.rows]) if self.rows else none


def side_by_side(parts: Sequence[Ranges]) -> Ranges:
    """Batches whose rows are those of all ``parts``, one behind the other."""
    if len(parts) == 1:
        return parts[0]
    rows = [each for part in parts for each in part.rows]
    ranges = np.concatenate([part.ranges for part in parts])
    return Ranges(rows, ranges, parts[0].rows_per_lane, parts[0].num_batches)


def arrange(
    columns: Columns, order: NDArray[np.int64] | None, memory: NDArray[np.int32] | None = None
) -> Rows:
    """The rows in another order: row i of the result is row ``order[i]``. None keeps the order.

    They lie in ``memory``, whose content is lost, where that is large enough.
    """
    size, num_dense = len(columns.labels), len(columns.dense)
    one_hot = [ids for ids in columns.features if not isinstance(ids, Bags)]
    bags = [ids for ids in columns.features if isinstance(ids, Bags)]
    sizes = [size * num_dense, size, size * len(one_hot)]
    for each in bags:
        sizes += [len(each.values), size + 1]
    memory = _at_least(sum(sizes), memory)
    parts = np.split(memory[: sum(sizes)], np.cumsum(sizes)[:-1])
    dense, labels = parts[0].view(np.float32).reshape(size, num_dense), parts[1].view(np.float32)
    ids = parts[2].reshape(len(one_hot), size)
    ordered_bags = [Bags(*pair) for pair in zip(parts[3::2], parts[4::2], strict=True)]
    rows = np.arange(size, dtype=np.int32) if order is None else order.astype(np.int32)
    gather.gather_rows(_addresses(columns.dense), rows, dense)
    labels[:] = columns.labels[rows]
    gather.gather_columns(_addresses(one_hot), rows, ids)
    for each, out in zip(bags, ordered_bags, strict=True):
        gather.gather_bags(each.values, each.offsets, rows, out.values, out.offsets)
    next_ids, next_bags = iter(ids), iter(ordered_bags)
    features = [next(next_bags) if isinstance(given, Bags) else next(next_ids) for given in columns.features]
    return Rows(dense, features, labels, memory)


def _at_least(size: int, memory: NDArray[np.int32] | None) -> NDArray[np.int32]:
    if memory is not None and len(memory) >= size:
        return memory
    # an eighth more: row groups of bags differ a little, and a later one gets this memory
    return np.empty(size + size // 8, np.int32)


def _addresses(arrays: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    return np.array([_address(array) for array in arrays], np.uint64)


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
