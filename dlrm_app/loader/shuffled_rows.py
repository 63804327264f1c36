"""Rows of a split of which some columns are shuffled among the rows, as batches of an evaluation.

Every rank reads all of these rows and makes batches of its own share, so that a shuffle is the same for any number of
ranks.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import Bags
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.ranks import Ranks
from dlrm_app.loader.batch import Batch, BatchMaker, Loading
from dlrm_app.loader.batch_order import IMPORTANCE, permutation
from dlrm_app.loader.reader import SplitReader
from dlrm_app.loader.rows import Columns, Ranges, in_given_order
from dlrm_app.logs.strings import MISSING_KEY


@dataclass(frozen=True)
class ShuffledBatches:
    """The batches of this rank's ``rows``, made as they are asked for."""

    rows: Columns
    maker: BatchMaker
    batch_size: int
    num_batches: int

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Batch]:
        rows, total = in_given_order(self.rows), len(self.rows)
        for number in range(self.num_batches):
            start = min(number * self.batch_size, total)
            stop = min(start + self.batch_size, total)
            (batch,) = self.maker.make(Ranges([rows], np.array([[start, stop, 0]]), self.batch_size, 1))
            yield batch


class SampledRows:
    """At most ``most`` rows of ``split``, evenly spread, whose columns can be shuffled. Raises DataError.

    ``features``: the sparse columns to read. ``group_by``: the rows are those of whole groups, at least one.
    ``numbers``: the places of the rows in the split.
    """

    def __init__(
        self,
        manifest: Manifest,
        split: str,
        features: Sequence[str],
        most: int | None,
        batch_size: int,
        ranks: Ranks,
        loading: Loading,
        group_by: str | None = None,
    ) -> None:
        self.manifest, self.split = manifest, split
        reader = SplitReader(manifest, split, features, all_negatives=True)
        total = sum(reader.group_rows)
        size = min(most or total, total)
        self.numbers = np.arange(size) * total // max(size, 1)
        keys = None if group_by is None else _read_keys(reader, group_by, total)
        if keys is not None and size < total:
            self.numbers = whole_groups(keys, size)
            size = len(self.numbers)
        self._dense, self._features = [column.name for column in manifest.dense], list(features)
        have_weights = {column.name for column in manifest.sparse if column.weights}
        self._weighed = [name for name in features if name in have_weights]
        self._vectors = [column.name for column in manifest.vectors]
        self._values = _read(reader, self.numbers)
        self._own = np.arange(*(place * size // ranks.world_size for place in (ranks.rank, ranks.rank + 1)))
        self.own_keys = None if keys is None else keys[self.numbers[self._own]]
        """The groups of this rank's rows: keys (int64) of a kept column, or ids (int32) of a feature."""
        self._maker = BatchMaker(
            manifest, features, batch_size, loading.device, reader.num_labels, reader.is_weighted
        )
        self._batch_size = batch_size
        largest_share = -(-size // ranks.world_size)
        self._num_batches = -(-largest_share // batch_size)

    @property
    def columns(self) -> list[str]:
        """The columns that are read: dense ones, then sparse ones, then vectors."""
        return [*self._dense, *self._features, *self._vectors]

    def column(self, name: str) -> NDArray[np.float32] | NDArray[np.int32] | Bags:
        """The values of a dense column or the ids of a sparse one, of all rows; of vectors, their first numbers."""
        if name in self._vectors:
            return self._values.vectors[self._vectors.index(name)][:, 0]
        if name in self._dense:
            return self._values.dense[self._dense.index(name)]
        return self._values.features[self._features.index(name)]

    def batches(
        self, shuffled: Collection[str] = (), order: NDArray[np.int64] | None = None
    ) -> ShuffledBatches:
        """This rank's batches. Row i has the values of row ``order[i]`` in the columns ``shuffled``; lists move as
        wholes, with the weights of their elements.
        """
        given = self._own if order is None else order[self._own]

        def rows_of(name: str) -> NDArray[np.int64]:
            return given if name in shuffled else self._own

        columns = self._values
        rows = Columns(
            [values[rows_of(name)] for name, values in zip(self._dense, columns.dense, strict=True)],
            [taken(ids, rows_of(name)) for name, ids in zip(self._features, columns.features, strict=True)],
            [values[self._own] for values in columns.supervision],
            [
                taken_bags(weights, rows_of(name))
                for name, weights in zip(self._weighed, columns.element_weights, strict=True)
            ],
            [values[rows_of(name)] for name, values in zip(self._vectors, columns.vectors, strict=True)],
        )
        return ShuffledBatches(rows, self._maker, self._batch_size, self._num_batches)


def _read_keys(reader: SplitReader, name: str, total: int) -> NDArray[np.int64] | NDArray[np.int32]:
    """The groups of all rows of the split."""
    for kept in reader.manifest.kept:
        if kept.name == name:
            return reader.read_kept(kept, 0, total).view(np.int64)
    feature = next(column for column in reader.manifest.sparse if column.name == name)
    return reader.read_ids(feature, 0, total)


def whole_groups(keys: NDArray[np.int64] | NDArray[np.int32], most: int) -> NDArray[np.int64]:
    """The places, rising, of the rows of some groups drawn at random: at most ``most`` rows, but at least one group.

    Rows of a kept column without a value are no group. ``keys``: those of all rows.
    """
    has_key = keys != MISSING_KEY.view(np.int64)
    groups, counts = np.unique(keys[has_key], return_counts=True)
    order = permutation(len(groups), 0, 0, IMPORTANCE, group=1)
    drawn = order[: max(1, int(np.searchsorted(np.cumsum(counts[order]), most, side="right")))]
    return np.flatnonzero(has_key & np.isin(keys, groups[drawn]))


def _read(reader: SplitReader, numbers: NDArray[np.int64]) -> Columns:
    """The rows of these ``numbers``, which rise."""
    parts: list[Columns] = []
    first = 0
    for group, rows in enumerate(reader.group_rows):
        low, high = np.searchsorted(numbers, [first, first + rows])
        if low < high or (group == len(reader.group_rows) - 1 and not parts):
            parts.append(_taken_rows(reader.read_columns(group), numbers[low:high] - first))
        first += rows
    return Columns(
        [np.concatenate(values) for values in zip(*(part.dense for part in parts), strict=True)],
        [_joined(ids) for ids in zip(*(part.features for part in parts), strict=True)],
        [np.concatenate(values) for values in zip(*(part.supervision for part in parts), strict=True)],
        [_joined_bags(weights) for weights in zip(*(part.element_weights for part in parts), strict=True)],
        [np.concatenate(values) for values in zip(*(part.vectors for part in parts), strict=True)],
    )


def _taken_rows(columns: Columns, rows: NDArray[np.int64]) -> Columns:
    return replace(
        columns,
        dense=[values[rows] for values in columns.dense],
        features=[taken(ids, rows) for ids in columns.features],
        supervision=[values[rows] for values in columns.supervision],
        element_weights=[taken_bags(weights, rows) for weights in columns.element_weights],
        vectors=[values[rows] for values in columns.vectors],
    )


def taken(column: NDArray[np.int32] | Bags, rows: NDArray[np.int64]) -> NDArray[np.int32] | Bags:
    """``rows`` of a column of ids, in any order."""
    return taken_bags(column, rows) if isinstance(column, Bags) else column[rows]


def taken_bags(column: Bags, rows: NDArray[np.int64]) -> Bags:
    begins, lengths = column.offsets[rows], np.diff(column.offsets)[rows]
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    places = np.arange(ends[-1]) + np.repeat(begins - ends[:-1], lengths)
    return Bags(column.values[places], ends.astype(np.int32))


def _joined(parts: Sequence[NDArray[np.int32] | Bags]) -> NDArray[np.int32] | Bags:
    bags = [part for part in parts if isinstance(part, Bags)]
    return (
        _joined_bags(bags) if bags else np.concatenate([part for part in parts if not isinstance(part, Bags)])
    )


def _joined_bags(parts: Sequence[Bags]) -> Bags:
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    return Bags(np.concatenate([part.values for part in parts]), offsets)
