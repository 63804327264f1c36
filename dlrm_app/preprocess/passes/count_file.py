"""The counts of one unit on disk: every feature's keys by bucket, readable a few buckets at a time.

Layout, little-endian: starts int64 [F, NUM_BUCKETS + 1] (entries), keys uint64 [E], counts int64 [E], then for the
entries of string features text ends int64 [E + 1] and the bytes; E entries over all features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlrm_app.kernels.compiled import njit
from dlrm_app.preprocess.passes.counting import NUM_BUCKETS, SortedCounts

_STARTS = NUM_BUCKETS + 1


@dataclass(frozen=True)
class Strings:
    """String i is bytes[ends[i]:ends[i + 1]]."""

    ends: NDArray[np.int64]
    bytes: NDArray[np.uint8]


@dataclass(frozen=True)
class CountFile:
    """Reads ``path``, of ``num_features`` features and ``entries`` entries."""

    path: Path
    num_features: int
    entries: int

    def _place(self, feature: int, first: int, last: int) -> tuple[int, int]:
        starts = np.fromfile(self.path, np.int64, _STARTS, offset=8 * feature * _STARTS)
        return int(starts[first]), int(starts[last])

    def counts(self, feature: int, first: int, last: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Keys and counts of ``feature`` in buckets [first, last)."""
        start, stop = self._place(feature, first, last)
        head = 8 * self.num_features * _STARTS
        keys = np.fromfile(self.path, np.uint64, stop - start, offset=head + 8 * start)
        counts = np.fromfile(self.path, np.int64, stop - start, offset=head + 8 * (self.entries + start))
        return keys, counts

    def strings(self, feature: int) -> tuple[NDArray[np.uint64], Strings]:
        """All keys of ``feature``, with their strings."""
        start, stop = self._place(feature, 0, NUM_BUCKETS)
        head = 8 * self.num_features * _STARTS
        keys = np.fromfile(self.path, np.uint64, stop - start, offset=head + 8 * start)
        ends = np.fromfile(
            self.path, np.int64, stop - start + 1, offset=head + 8 * (2 * self.entries + start)
        )
        text = np.fromfile(
            self.path,
            np.uint8,
            int(ends[-1] - ends[0]),
            offset=head + 8 * (3 * self.entries + 1) + int(ends[0]),
        )
        return keys, Strings(ends - ends[0], text)


def write_counts(path: Path, features: Sequence[SortedCounts], strings: Strings | None) -> None:
    """Writes the counts of every feature, and the strings behind their keys where there are any."""
    offsets = np.cumsum([0, *[len(counts.keys) for counts in features]])
    with path.open("wb") as file:
        for counts, offset in zip(features, offsets, strict=False):
            (counts.starts + offset).tofile(file)
        for counts in features:
            counts.keys.tofile(file)
        for counts in features:
            counts.counts.tofile(file)
        if strings is not None:
            strings.ends.tofile(file)
            strings.bytes.tofile(file)


def gather_strings(text: NDArray[np.uint8], spans: NDArray[np.int64], quote: int) -> Strings:
    """The strings at ``spans`` [E, 2] of ``text``; where a span's end is negative, doubled quotes become single."""
    ends = np.zeros(len(spans) + 1, np.int64)
    room = int((np.abs(spans[:, 1]) - spans[:, 0]).sum())
    strings = np.empty(room, np.uint8)
    _gather(text, spans, quote, ends, strings)
    return Strings(ends, strings[: ends[-1]])


@njit(nogil=True, cache=True)
def _gather(text, spans, quote, ends, strings):  # type: ignore[no-untyped-def]  # compiled
    at = 0
    for i in range(len(spans)):
        position, stop = spans[i, 0], abs(spans[i, 1])
        while position < stop:
            byte = text[position]
            strings[at] = byte
            at += 1
            position += 2 if spans[i, 1] < 0 and byte == quote else 1
        ends[i + 1] = at
