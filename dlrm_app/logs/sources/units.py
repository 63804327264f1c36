"""Units of work: their names, and the parts of files that they have read.

A unit is a range of a file, or a bundle: small files in a row that are read as one, because each unit costs a
journal's entry and a shard. The content of a unit or a bundle depends only on the files, their columns and
the size of units.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrm_app.journal import numbered
from dlrm_app.logs.sources.source import InputFile

MIB = 1 << 20
"""Settings give the size of units in MiB."""


class Block(NamedTuple):
    """Whole lines, text[start:stop]."""

    text: NDArray[np.uint8]
    start: int
    stop: int


class UnitName(NamedTuple):
    """The name of a unit in journals: its source, its number there, and the last source if it is a bundle."""

    source: int
    unit: int
    last: int

    def __str__(self) -> str:
        return numbered(self.source, self.unit, *([self.last] if self.is_bundle else []))

    @classmethod
    def parse(cls, text: str) -> "UnitName | None":
        """The unit that ``text`` names; None if it names other work, such as a shard to gather."""
        source, *rest = map(int, text.split("-"))
        return cls(source, rest[0], rest[1] if rest[1:] else source) if rest else None

    @property
    def is_bundle(self) -> bool:
        return self.last > self.source

    @property
    def sources(self) -> range:
        """The numbers of the sources that it has rows of."""
        return range(self.source, self.last + 1)


def unit_name(source: int, unit: int) -> str:
    """The name of unit ``unit`` of source ``source`` in journals."""
    return str(UnitName(source, unit, source))


@dataclass(frozen=True)
class FileExtent:
    """A file of a bundle that has been read.

    ``size``, ``crc``: the size and the checksum of its text.
    ``lines``: the number of its lines, without a header.
    """

    size: int
    file_bytes: int
    crc: int
    lines: int


@dataclass(frozen=True)
class UnitExtent:
    """The extent of a unit that has been read.

    ``size``, ``crc``: the size and the checksum of its text.
    ``file_bytes``: its size in the file.
    ``is_last``: True if the source ends with it.
    ``files``: the files of a bundle, the first of which is ``source``.
    """

    source: int
    unit: int
    size: int
    file_bytes: int
    crc: int
    is_last: bool
    files: tuple[FileExtent, ...] = ()

    @classmethod
    def of_bundle(cls, source: int, files: Sequence[FileExtent], is_all: bool) -> "UnitExtent":
        """The extent of a bundle whose first file is ``source``. ``is_all``: True if there are no other files."""
        sizes = sum(file.size for file in files), sum(file.file_bytes for file in files)
        return cls(source, 0, *sizes, 0, is_all, tuple(files))

    @property
    def name(self) -> str:
        """The unit's name in journals."""
        return str(UnitName(self.source, self.unit, self.source + max(len(self.files) - 1, 0)))

    def place_of(self, line: int) -> tuple[int, int]:
        """(source, line there) of line ``line`` of the unit; both lines count from 0."""
        which = bisect_right(self._ends, line)
        return self.source + which, line - (self._ends[which - 1] if which else 0)

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(file.lines for file in self.files))


def bundle_files(
    files: Sequence[InputFile],
    size_of: Callable[[InputFile], int],
    kind_of: Callable[[InputFile], object],
    most: int,
) -> list[tuple[InputFile, ...]]:
    """``files`` in order; those in a row with at most ``most`` bytes together and of the same kind are joined."""
    bundles: list[list[InputFile]] = []
    total, kind = 0, None
    for file in files:
        size, its_kind = size_of(file), kind_of(file)
        follows = bool(bundles) and bundles[-1][-1].index + 1 == file.index
        if follows and total + size <= most and kind == its_kind:
            bundles[-1].append(file)
            total += size
        else:
            bundles.append([file])
            total, kind = size, its_kind
    return [tuple(bundle) for bundle in bundles]
