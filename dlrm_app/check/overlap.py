"""Rows that occur more than once: within the training split, and in it and in another one.

Every row becomes one number of 64 bits: 61 of a hash of all its values except the label, then its split and its label.
Sorted, equal rows lie side by side. Two different rows have one hash with a chance of 2^-61. Where memory does not hold
the numbers of all rows, those of a share of all hashes are kept: equal rows are all in this sample, or none is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlrm_app.check.shards import Values
from dlrm_app.dataset.arrow import Bags
from dlrm_app.dataset.manifest import SPLITS, Manifest
from dlrm_app.kernels.compiled import njit
from dlrm_app.preprocess.encode.dense import is_target
from dlrm_app.preprocess.encode.sparse import mix

_TAG_BITS = 3


def hash_rows(values: Values, manifest: Manifest, num_rows: int) -> NDArray[np.uint64] | None:
    """A hash of each row's dense values and ids, bit by bit; None if a column is lacking.

    Target columns are left out: equal rows of train, in different folds, and of val differ in them.
    """
    dense = [column.name for column in manifest.dense if not is_target(column)]
    if any(name not in values.dense for name in dense) or len(values.ids) < len(manifest.sparse):
        return None
    hashes = np.zeros(num_rows, np.uint64)
    for name in dense:
        _mix_in(hashes, values.dense[name].view(np.uint32))
    for column in manifest.sparse:
        ids = values.ids[column.name]
        if isinstance(ids, Bags):
            _mix_lists_in(hashes, ids.values.view(np.uint32), ids.offsets)
        else:
            _mix_in(hashes, ids.view(np.uint32))
    return hashes


@njit(nogil=True, cache=True)
def _mix_in(hashes, values):  # type: ignore[no-untyped-def]  # compiled
    for row in range(len(hashes)):
        hashes[row] = mix((hashes[row] ^ np.uint64(values[row])) + np.uint64(0x9E3779B97F4A7C15))


@njit(nogil=True, cache=True)
def _mix_lists_in(hashes, values, offsets):  # type: ignore[no-untyped-def]  # compiled
    for row in range(len(hashes)):
        state = mix(hashes[row] ^ np.uint64(offsets[row + 1] - offsets[row]))
        for i in range(offsets[row], offsets[row + 1]):
            state = mix((state ^ np.uint64(values[i])) + np.uint64(0x9E3779B97F4A7C15))
        hashes[row] = state


@dataclass(frozen=True)
class Overlap:
    """Rows of one split that are in the training split as well; for train itself, that are in it more than once.

    ``same_label``: those where the label is equal too, None without labels. ``expected``: as many as if the split's
    rows were drawn like the training rows, of which this share occur more than once; None for train itself.
    ``is_estimate``: counted in a sample.
    """

    rows: int
    repeated: int
    same_label: int | None
    expected: float | None
    is_estimate: bool = False

    @property
    def share(self) -> float:
        return self.repeated / max(self.rows, 1)

    @property
    def is_suspicious(self) -> bool:
        """More than twice what is expected, and more than chance makes of a handful."""
        return self.expected is not None and self.repeated > 2 * self.expected + 10


class RowNumbers:
    """The numbers of rows, of ``total`` at most, and of a smaller sample each time that memory is full."""

    def __init__(self, total: int, memory_bytes: int) -> None:
        self._numbers = np.empty(min(total, memory_bytes // 8), np.uint64)
        self._filled = 0
        self._sample_bits = 0

    def add(self, split: str, hashes: NDArray[np.uint64], labels: NDArray[np.uint8] | None) -> None:
        tags = np.full(len(hashes), SPLITS.index(split) << 1, np.uint64)
        if labels is not None:
            tags |= labels
        numbers = self._sample((hashes >> np.uint64(_TAG_BITS) << np.uint64(_TAG_BITS)) | tags)
        while self._filled + len(numbers) > len(self._numbers):
            self._sample_bits += 1
            kept = self._sample(self._numbers[: self._filled])
            self._filled = len(kept)
            self._numbers[: self._filled] = kept
            numbers = self._sample(numbers)
        self._numbers[self._filled : self._filled + len(numbers)] = numbers
        self._filled += len(numbers)

    def _sample(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The numbers whose highest bits are 0."""
        return numbers[numbers <= np.uint64((1 << 64 - self._sample_bits) - 1)]

    def overlaps(self, rows: Mapping[str, int], labelled: Sequence[str]) -> dict[str, Overlap]:
        """The overlap of each split; ``rows`` were added of each, ``labelled`` have labels.

        Empty without a training split to compare with.
        """
        if not rows.get("train"):
            return {}
        repeats = np.zeros((len(SPLITS), 2), np.int64)
        numbers = self._numbers[: self._filled]
        numbers.sort()
        _count_repeats(numbers, repeats)
        counts = {
            split: [min(count << self._sample_bits, rows[split]) for count in repeats[place].tolist()]
            for place, split in enumerate(SPLITS)
            if split in rows
        }
        train_share = counts["train"][0] / rows["train"]
        return {
            split: Overlap(
                rows=count,
                repeated=counts[split][0],
                same_label=counts[split][1] if {split, "train"} <= set(labelled) else None,
                expected=None if split == "train" else train_share * count,
                is_estimate=self._sample_bits > 0,
            )
            for split, count in rows.items()
        }


@njit(nogil=True, cache=True)
def _count_repeats(numbers, repeats):  # type: ignore[no-untyped-def]  # compiled
    """Adds to ``repeats`` the repeats among sorted ``numbers``; tags are 2 * split + label, split 0 is train.

    [splits, 2]: rows of each split that are repeated, label left out and label included (see ``Overlap``).
    """
    start = 0
    rows = np.zeros((3, 2), np.int64)
    while start < len(numbers):
        rows[:] = 0
        stop = start
        while stop < len(numbers) and numbers[stop] >> np.uint64(3) == numbers[start] >> np.uint64(3):
            tag = np.int64(numbers[stop] & np.uint64(7))
            rows[tag >> 1, tag & 1] += 1
            stop += 1
        in_train = rows[0, 0] + rows[0, 1]
        for split in range(3):
            others = 1 if split == 0 else 0  # a training row must occur once more than itself
            if in_train > others:
                repeats[split, 0] += rows[split, 0] + rows[split, 1]
            for label in range(2):
                if rows[0, label] > others:
                    repeats[split, 1] += rows[split, label]
        start = stop
