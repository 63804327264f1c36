"""Samples of rows by the hashes of their contents, to estimate shares of copies, and of rows that two files share.

A sample holds all rows whose hash is below 2^(64 - bits), so two samples choose the same contents, whatever files they
come from. Folds and splits are drawn by contents too, so that copies stay together.
"""

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlrm_app.checksums import file_difference
from dlrm_app.encoding.row_hash import content_hashes
from dlrm_app.encoding.sparse import once_per_file
from dlrm_app.errors import DataError, Problem
from dlrm_app.files import written_whole
from dlrm_app.logs.raw_columns import RawColumns
from dlrm_app.logs.spec import Spec
from dlrm_app.text import percent

logger = logging.getLogger(__name__)

MAX_CONTENTS = 1 << 18
"""The most distinct contents of a sample: 4 MiB."""
SAMPLE_FILE = "contents.npy"
"""The sample of a dataset's own rows, in its folder."""
DAY_CONTENTS = 1 << 14
"""The most distinct contents of that sample: 256 KiB, so that the samples of all days can be kept."""
_MIN_COPIES = 0.01
"""The share of copies above which a warning is logged."""
Z_95 = 1.96
"""Standard errors on each side of an estimate: a 95% interval."""


@dataclass(frozen=True)
class RowSample:
    """A sample of rows: distinct ``hashes`` [n] below 2^(64 - ``bits``), rising, and the ``counts`` [n] of their rows."""

    bits: int
    hashes: NDArray[np.uint64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, hashes: NDArray[np.uint64], max_contents: int = MAX_CONTENTS) -> "RowSample":
        """The sample of rows with these ``hashes``, which may repeat."""
        distinct, counts = np.unique(hashes, return_counts=True)
        return cls(0, distinct, counts).within(max_contents)

    @classmethod
    def joined(cls, samples: Iterable["RowSample"], max_contents: int = MAX_CONTENTS) -> "RowSample":
        """The sample of all rows of ``samples``."""
        parts = list(samples)
        bits = max((part.bits for part in parts), default=0)
        parts = [part.thinned(bits) for part in parts]
        hashes = np.concatenate([np.empty(0, np.uint64), *(part.hashes for part in parts)])
        counts = np.concatenate([np.empty(0, np.int64), *(part.counts for part in parts)])
        distinct, places = np.unique(hashes, return_inverse=True)
        totals = np.bincount(places, counts, len(distinct)).astype(np.int64)
        return cls(bits, distinct, totals).within(max_contents)

    def thinned(self, bits: int) -> "RowSample":
        """The sample reduced to ``bits``, if it has fewer."""
        if bits <= self.bits:
            return self
        kept = int(np.searchsorted(self.hashes, np.uint64(1 << (64 - bits))))
        return RowSample(bits, self.hashes[:kept], self.counts[:kept])

    def within(self, max_contents: int) -> "RowSample":
        """The largest sample of these rows with at most ``max_contents``."""
        sample = self
        while len(sample.hashes) > max_contents:
            sample = sample.thinned(sample.bits + 1)
        return sample

    @property
    def rows(self) -> int:
        """Rows in the sample."""
        return int(self.counts.sum())

    @property
    def copies(self) -> "KnownShare":
        """The rows of the sample whose content an earlier row has."""
        return KnownShare(self.rows, self.rows - len(self.hashes))

    @property
    def repeated_share(self) -> float:
        """The share of rows that have the content of another row."""
        return int(self.counts[self.counts > 1].sum()) / max(self.rows, 1)

    def seen_in(self, others: Iterable["RowSample"]) -> "KnownShare":
        """The rows of this sample whose content one of ``others`` has."""
        parts = list(others)
        bits = max([self.bits, *(part.bits for part in parts)])
        own = self.thinned(bits)
        other_hashes = [own.hashes[:0], *(part.thinned(bits).hashes for part in parts)]
        is_known = np.isin(own.hashes, np.concatenate(other_hashes))
        return KnownShare(own.rows, int(own.counts[is_known].sum()))

    def count_of(self, hashes: NDArray[np.uint64]) -> "KnownShare":
        """The rows with ``hashes`` whose content is in the sample, among those that the sample would choose."""
        if self.bits:
            hashes = hashes[hashes < np.uint64(1 << (64 - self.bits))]
        places = np.minimum(np.searchsorted(self.hashes, hashes), max(len(self.hashes) - 1, 0))
        known = int((self.hashes[places] == hashes).sum()) if len(self.hashes) else 0
        return KnownShare(len(hashes), known)

    def write(self, path: Path) -> None:
        """Writes the sample; the file is complete or absent."""
        with written_whole(path) as temporary, temporary.open("wb") as file:
            np.save(file, np.array([self.bits, len(self.hashes)], np.uint64))
            np.save(file, self.hashes)
            np.save(file, self.counts)


def read_row_sample(path: Path, checksum: str | None = None) -> RowSample:
    """Reads a sample. Raises DataError if the file is damaged or has another ``checksum``."""
    try:
        if checksum is not None and (difference := file_difference(path, None, checksum)):
            raise DataError(replace(difference, cure="copy the dataset folder again, or preprocess again"))
        with path.open("rb") as file:
            head, hashes, counts = (np.load(file, allow_pickle=False) for _ in range(3))
        return RowSample(int(head[0]), hashes, counts)
    except (OSError, ValueError, EOFError, IndexError) as error:
        raise DataError(Problem(str(path), f"cannot be read ({error})", "preprocess again")) from error


def cached_row_sample(path: Path, checksum: str) -> RowSample:
    """``read_row_sample``, once per process."""
    return once_per_file(path, {"checksum": checksum}, 0, lambda: read_row_sample(path, checksum))


def warn_of_copies(sample: RowSample, rows: str) -> None:
    """Warns if more than a small share of ``rows`` are copies."""
    if sample.copies.share > _MIN_COPIES:
        logger.warning(
            "about %s of the %s are copies of others. They stay together in folds of target columns and in splits, "
            "and count as often as they occur; if each should count once, remove them from the log",
            percent(sample.copies.share),
            rows,
        )


@dataclass(frozen=True)
class KnownShare:
    """A sample of ``rows`` rows, ``known`` of which have a content that was seen before."""

    rows: int = 0
    known: int = 0

    def __add__(self, other: "KnownShare") -> "KnownShare":
        return KnownShare(self.rows + other.rows, self.known + other.known)

    @property
    def share(self) -> float:
        return self.known / max(self.rows, 1)

    @property
    def least(self) -> float:
        """The lower end of the 95% interval of the share (Wilson 1927)."""
        n = max(self.rows, 1)
        centre = self.share + Z_95**2 / (2 * n)
        reach = Z_95 * math.sqrt(self.share * (1 - self.share) / n + (Z_95 / (2 * n)) ** 2)
        return max((centre - reach) / (1 + Z_95**2 / n), 0.0)


class RowSampler:
    """Collects a sample of the rows of a unit, within bounded memory."""

    def __init__(self) -> None:
        self._sample = RowSample.of(np.empty(0, np.uint64))
        self._parts: list[NDArray[np.uint64]] = []
        self._waiting = 0

    def add(self, hashes: NDArray[np.uint64]) -> None:
        if self._sample.bits:
            hashes = hashes[hashes < np.uint64(1 << (64 - self._sample.bits))]
        self._parts.append(hashes)
        self._waiting += len(hashes)
        if self._waiting > 2 * MAX_CONTENTS:
            self._join()

    def _join(self) -> None:
        if self._parts:
            self._sample = RowSample.joined([self._sample, RowSample.of(np.concatenate(self._parts))])
            self._parts, self._waiting = [], 0

    @property
    def sample(self) -> RowSample:
        self._join()
        return self._sample


def contents_identify_rows(raw: Iterable[RawColumns], spec: Spec) -> bool:
    """False if most rows repeat the content of another row, and some contents occur with both labels.

    Copies of a row have the same label. If the same content occurs with both labels, the rows are not copies: the log
    has few columns and few values, and its rows cannot be dealt by their contents.
    """
    hashes, labels = [], []
    for rows in raw:
        hashes.append(content_hashes(rows, spec))
        labels.append(rows.labels.copy())
    if not hashes:
        return True
    distinct, places = np.unique(np.concatenate(hashes), return_inverse=True)
    clicks = np.bincount(places, np.concatenate(labels), len(distinct))
    counts = np.bincount(places, minlength=len(distinct))
    has_both = bool(((clicks > 0) & (clicks < counts)).any())
    return not (has_both and len(places) - len(distinct) > len(places) / 2)
