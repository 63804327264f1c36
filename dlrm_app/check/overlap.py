"""Rows that occur more than once: within the training split, and in it and in another one.

Every row becomes one number of 64 bits: 61 of a hash of all its values but the label, then its split and its label.
Sorted, equal rows lie side by side. Where the numbers of all rows do not fit in memory they go to files by their
highest bits, and each file is sorted by itself. Two different rows have one hash with a chance of 2^-61.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from dlrm_app.check.row_groups import Values
from dlrm_app.dataset.manifest import SPLITS, Manifest
from dlrm_app.kernels.compiled import njit
from dlrm_app.preprocess.encode.dense import is_target
from dlrm_app.preprocess.units.hashing import mix

FOLDER_PREFIX = ".check-"
_TAG_BITS = 3
_FILE_BUFFER = 1 << 18


def hash_rows(values: Values, manifest: Manifest, num_rows: int) -> NDArray[np.uint64] | None:
    """A hash of each row's dense values and ids, bit by bit; None if a column is lacking.

    Target columns are left out: equal rows of train, in different folds, and of val differ in them.
    """
    dense = [column.name for column in manifest.dense if not is_target(column)]
    names = dense, [column.name for column in manifest.sparse]
    if any(name not in values.dense for name in names[0]) or any(name not in values.ids for name in names[1]):
        return None
    hashes = np.zeros(num_rows, np.uint64)
    for name in names[0]:
        _mix_in(hashes, values.dense[name].view(np.uint32))
    for name in names[1]:
        if name in values.offsets:
            _mix_lists_in(hashes, values.ids[name].view(np.uint32), values.offsets[name])
        else:
            _mix_in(hashes, values.ids[name].view(np.uint32))
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
    """

    rows: int
    repeated: int
    same_label: int | None
    expected: float | None

    @property
    def share(self) -> float:
        return self.repeated / max(self.rows, 1)

    @property
    def is_suspicious(self) -> bool:
        """More than twice what is expected, and more than chance makes of a handful."""
        return self.expected is not None and self.repeated > 2 * self.expected + 10


class RowNumbers:
    """Takes the rows' hashes, ``total`` at most, and counts the equal ones; keeps files in ``folder`` if it must."""

    def __init__(self, total: int, memory_bytes: int, folder: Path) -> None:
        self._bits = 0
        while (8 * total) >> self._bits > memory_bytes and self._bits < 10:
            self._bits += 1
        self._numbers = np.empty(total if self._bits == 0 else 0, np.uint64)
        self._filled = 0
        self._folder: Path | None = None
        self._files: list[BinaryIO] = []
        if self._bits:
            self._folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=folder))
            self._files = [
                (self._folder / f"{part:04d}").open("wb", buffering=_FILE_BUFFER)
                for part in range(1 << self._bits)
            ]

    def add(self, split: str, hashes: NDArray[np.uint64], labels: NDArray[np.uint8] | None) -> None:
        tags = np.full(len(hashes), SPLITS.index(split) << 1, np.uint64)
        if labels is not None:
            tags |= labels
        numbers = (hashes >> np.uint64(_TAG_BITS) << np.uint64(_TAG_BITS)) | tags
        if not self._bits:
            self._numbers[self._filled : self._filled + len(numbers)] = numbers
            self._filled += len(numbers)
            return
        numbers.sort()
        starts = np.arange(1, len(self._files), dtype=np.uint64) << np.uint64(64 - self._bits)
        for file, part in zip(self._files, np.split(numbers, np.searchsorted(numbers, starts)), strict=True):
            file.write(part.tobytes())

    def count(self) -> NDArray[np.int64]:
        """[splits, 2]: rows of each split that are repeated, label left out and label included (see ``Overlap``)."""
        repeats = np.zeros((len(SPLITS), 2), np.int64)
        if not self._bits:
            numbers = self._numbers[: self._filled]
            numbers.sort()
            _count_repeats(numbers, repeats)
            return repeats
        for file in self._files:
            file.close()
            numbers = np.fromfile(file.name, np.uint64)
            numbers.sort()
            _count_repeats(numbers, repeats)
            Path(file.name).unlink()
        return repeats

    def close(self) -> None:
        for file in self._files:
            file.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


@njit(nogil=True, cache=True)
def _count_repeats(numbers, repeats):  # type: ignore[no-untyped-def]  # compiled
    """Adds to ``repeats`` the repeats among sorted ``numbers``; tags are 2 * split + label, split 0 is train."""
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


def overlaps(
    repeats: NDArray[np.int64], rows: Mapping[str, int], labelled: Sequence[str]
) -> dict[str, Overlap]:
    """``repeats`` of ``RowNumbers.count``, by split; ``rows`` were added of each, ``labelled`` have labels.

    Empty without a training split to compare with.
    """
    if not rows.get("train"):
        return {}
    train_share = repeats[0, 0] / rows["train"]
    return {
        split: Overlap(
            rows=count,
            repeated=int(repeats[SPLITS.index(split), 0]),
            same_label=int(repeats[SPLITS.index(split), 1])
            if split in labelled and "train" in labelled
            else None,
            expected=None if split == "train" else float(train_share * count),
        )
        for split, count in rows.items()
    }
