"""Statistics of a dataset in one pass: moments of dense columns, counts of ids, repeated rows.

A row's hash has 64 bits, so two different rows have the same hash with probability 2^-64. If memory cannot hold the
hashes of all rows, a sample is kept; it contains either all rows with a hash or none of them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import Bags
from dlrm_app.dataset.manifest import SparseColumn
from dlrm_app.kernels.compiled import njit
from dlrm_app.kernels.hashing import GOLDEN, mix

_COUNT_BYTES = 8


class DenseValues:
    """Exact moments of finite values."""

    def __init__(self) -> None:
        self.count = 0
        self.zeros = 0
        self.low, self.high = np.inf, -np.inf
        self._sum = 0.0

    def add(self, values: NDArray[np.float32]) -> None:
        if not len(values):
            return
        self.count += len(values)
        self.zeros += int(np.count_nonzero(values == 0))
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        self._sum += float(values.sum(dtype=np.float64))

    @property
    def mean(self) -> float:
        return self._sum / self.count if self.count else float("nan")


class Popularity:
    """Occurrences of each id of a feature."""

    def __init__(self, column: SparseColumn) -> None:
        self._missing_id = column.encoding.get("missing_id")
        self._rare_id = column.encoding.get("rare_id")
        self._counts = np.zeros(column.num_embeddings, np.int64)

    def add(self, ids: NDArray[np.int32]) -> None:
        _count(ids, self._counts)

    def unseen(self, ids: NDArray[np.int32]) -> int:
        """The number of ``ids`` that have not been added."""
        return int(np.count_nonzero(self._counts[ids] == 0))

    @property
    def missing(self) -> int:
        """Occurrences of the id of missing values."""
        return 0 if self._missing_id is None else int(self._counts[self._missing_id])

    @property
    def unknown_share(self) -> float | None:
        """The share of lookups of values that the vocabulary does not have; None without a vocabulary."""
        if self._rare_id is None:
            return None
        return float(self._counts[self._rare_id] / max(self._counts.sum() - self.missing, 1))

    @property
    def ids_used(self) -> int:
        return int(np.count_nonzero(self._counts)) - (self.missing > 0)

    def top(self, k: int) -> float:
        """The share of lookups of the ``k`` most frequent ids, without missing values."""
        counts = self._counts.copy()
        if self._missing_id is not None:
            counts[self._missing_id] = 0
        k = min(k, len(counts))
        counts.partition(-k)
        return float(counts[-k:].sum() / max(counts.sum(), 1))


def countable_columns(columns: Sequence[SparseColumn], memory_bytes: int) -> list[SparseColumn]:
    """The columns whose ids can be counted within ``memory_bytes``; small tables come first."""
    ordered = sorted(columns, key=lambda column: column.num_embeddings)
    needed = np.cumsum([_COUNT_BYTES * column.num_embeddings for column in ordered])
    return ordered[: int(np.searchsorted(needed, memory_bytes, "right"))]


@dataclass(frozen=True)
class Overlap:
    """The number of rows of a split that are also in the training split; for train itself, rows that occur
    more than once.

    The label is not compared.

    ``expected``: the number if the split's rows had the same share of repeats as the training rows; None for train
    itself.
    ``is_estimate``: True if it was counted in a sample.
    """

    repeated: int
    expected: float | None
    is_estimate: bool

    @property
    def is_suspicious(self) -> bool:
        """True if there are more than twice the expected repeats, and more than chance gives in small numbers."""
        return self.expected is not None and self.repeated > 2 * self.expected + 10


class RowHashes:
    """The hashes of the rows of each split (at most ``total`` rows), or of a sample of them."""

    def __init__(self, total: int, memory_bytes: int) -> None:
        self._hashes: dict[str, list[NDArray[np.uint64]]] = defaultdict(list)
        room = max(memory_bytes // (2 * 8), 1)  # twice, because they are concatenated
        self._sample_bits = max(-(-total // room) - 1, 0).bit_length()

    def add(self, split: str, hashes: NDArray[np.uint64]) -> None:
        self._hashes[split].append(hashes[hashes <= np.uint64((1 << 64 - self._sample_bits) - 1)])

    def overlaps(self, rows: Mapping[str, int]) -> dict[str, Overlap]:
        """The overlap of each split, with the number of its ``rows``; empty without a training split."""
        if not rows.get("train"):
            return {}
        train = self._sorted("train")
        equal = np.concatenate([[False], train[1:] == train[:-1], [False]])
        found = {"train": int(np.count_nonzero(equal[1:] | equal[:-1]))}
        for split in rows.keys() - {"train"}:
            own = self._sorted(split)
            is_there = np.searchsorted(train, own, "left") < np.searchsorted(train, own, "right")
            found[split] = int(np.count_nonzero(is_there))
        repeated = {split: min(found[split] << self._sample_bits, count) for split, count in rows.items()}
        share, is_sample = repeated["train"] / rows["train"], self._sample_bits > 0
        return {
            split: Overlap(repeated[split], None if split == "train" else share * count, is_sample)
            for split, count in rows.items()
        }

    def _sorted(self, split: str) -> NDArray[np.uint64]:
        hashes = np.concatenate([np.empty(0, np.uint64), *self._hashes.pop(split, [])])
        hashes.sort()
        return hashes


def hash_rows(
    columns: Iterable[NDArray[np.float32] | NDArray[np.int32] | Bags], num_rows: int
) -> NDArray[np.uint64]:
    """A hash of the bits of each row's values."""
    hashes = np.zeros(num_rows, np.uint64)
    for column in columns:
        if not isinstance(column, Bags):
            column = Bags(column.view(np.int32), np.arange(num_rows + 1, dtype=np.int32))
        _mix_in(hashes, column.values.view(np.uint32), column.offsets)
    return hashes


@njit(nogil=True, cache=True)
def _count(ids, counts):  # type: ignore[no-untyped-def]  # compiled
    for i in range(len(ids)):
        counts[ids[i]] += 1


@njit(nogil=True, cache=True)
def _mix_in(hashes, values, offsets):  # type: ignore[no-untyped-def]  # compiled
    for row in range(len(hashes)):
        state = mix(hashes[row] ^ np.uint64(offsets[row + 1] - offsets[row]))
        for i in range(offsets[row], offsets[row + 1]):
            state = mix((state ^ np.uint64(values[i])) + GOLDEN)
        hashes[row] = state
