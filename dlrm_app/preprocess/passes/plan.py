"""The plan of a run, made before it begins, and the cuts of the training input: plain values, sent to any process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import ClassVar

from dlrm_app.dataset.manifest import SPLITS
from dlrm_app.errors import refuse_if
from dlrm_app.preprocess.read import lines
from dlrm_app.preprocess.read.parquet_columns import names_of
from dlrm_app.preprocess.read.parser import body
from dlrm_app.preprocess.read.spec import Spec
from dlrm_app.preprocess.units.executor import Finish
from dlrm_app.preprocess.units.journal import Journal
from dlrm_app.preprocess.units.parquet_units import ParquetFeed, ParquetUnit, UnitRows, units_of
from dlrm_app.preprocess.units.source import Source
from dlrm_app.preprocess.units.unit_text import TextFeed, TextRange, UnitText


@dataclass(frozen=True)
class Plan:
    """The run: its input, its format, and where the lines of a source go."""

    spec: Spec
    sources: tuple[Source, ...]
    unlabelled: frozenset[str]
    fractions: Mapping[str, float]
    unit_bytes: int
    row_group_rows: int
    shuffle: str
    seed: int
    output: Path
    file_specs: tuple[Spec, ...] = ()
    """The format of each source, once they were looked at."""

    @property
    def splits(self) -> list[str]:
        """The splits of the dataset, in their order."""
        given = {source.split for source in self.sources}
        return [split for split in SPLITS if split in given or split in self.fractions]

    @property
    def studied(self) -> set[str]:
        """The splits that vocabularies, moments and statistics are taken from."""
        return {"train"} if "train" in self.splits else set(self.splits)

    def sources_of(self, splits: set[str]) -> list[Source]:
        return [source for source in self.sources if source.split in splits]

    def columns_of(self, source: Source) -> dict[str, str]:
        """Column → its name in the file, of a Parquet source."""
        return names_of(source, self.file_specs[source.index])

    def units_of(self, source: Source) -> list[UnitRows]:
        """The units of a Parquet source."""
        return units_of(source, len(self.columns_of(source)), self.unit_bytes)

    def has_label(self, split: str) -> bool:
        return self.spec.label is not None and split not in self.unlabelled


def unit_feeds(
    source: Source, columns: Mapping[str, str], unit_bytes: int, is_wanted: Callable[[int], bool]
) -> list[TextFeed] | list[ParquetFeed]:
    """Feeds of the units that are wanted, by their numbers.

    One for each in a plain file, one for all of a compressed file, wanted or not, one for those of Parquet that share a
    row group. ``columns``: those of a ParquetFeed.
    """
    if source.format == "parquet":
        rows = units_of(source, len(columns), unit_bytes)
        wanted = filter(is_wanted, range(len(rows)))
        shared = groupby(wanted, lambda number: rows[number].groups)
        return [ParquetFeed(source, columns, unit_bytes, tuple(numbers)) for _, numbers in shared]
    if source.is_compressed:
        return [TextFeed(source, unit_bytes)]
    num_units = max(-(-source.bytes // unit_bytes), 1)
    return [TextFeed(source, unit_bytes, unit, unit + 1) for unit in filter(is_wanted, range(num_units))]


@dataclass(frozen=True, slots=True)
class Segment:
    """Lines of a unit, counted from its first one, that go to one split; ``stop`` None: to the unit's end."""

    split: str
    start: int
    stop: int | None


@dataclass(frozen=True)
class Cuts:
    """Cuts of the training input: lines [0, train) train, [train, val) validate, the others test."""

    train: int
    val: int
    first_lines: Mapping[tuple[int, int], int]
    """The number of each unit's first line among all lines of the training input."""

    def segments(self, source: int, unit: int) -> list[Segment]:
        """The split of every line of a unit."""
        first = self.first_lines[source, unit]
        bounds = {"train": (0, self.train), "val": (self.train, self.val), "test": (self.val, None)}
        segments = []
        for split, (start, stop) in bounds.items():
            low = max(start - first, 0)
            high = None if stop is None else stop - first
            if high is None or high > low:
                segments.append(Segment(split, low, high))
        return segments


def cut_lines(lines: Mapping[tuple[int, int], int], fractions: Mapping[str, float]) -> Cuts:
    """Takes ``fractions`` of all lines from the end, rounded down; ``lines``: of each unit, in order.

    Raises ConfigError if one is less than a line.
    """
    starts = [0, *accumulate(lines.values())]
    total = starts[-1]
    sizes = {name: int(total * fraction) for name, fraction in fractions.items()}
    refuse_if(
        [
            f"split.{name}={fractions[name]} of the {total:,} lines of input.train is less than one, "
            f"so the {name} split has no rows: give split.{name}={2 / total:.2g} or more"
            for name, size in sizes.items()
            if not size
        ]
    )
    val = total - sizes.get("test", 0)
    return Cuts(val - sizes.get("val", 0), val, dict(zip(lines, starts, strict=False)))


def segments(plan: Plan, cuts: Cuts | None, text: UnitText | ParquetUnit) -> list[Segment]:
    """The lines of the unit that go to each split."""
    split = plan.sources[text.source].split
    if cuts is None or split != "train":
        return [Segment(split, 0, None)]
    return cuts.segments(text.source, text.unit)


@dataclass(frozen=True)
class CountedUnit:
    """``lines``: of the unit, the file's header left out."""

    text: TextRange
    lines: int


@dataclass(frozen=True)
class CountLines:
    """Counts the lines of each unit."""

    title: ClassVar[str] = "counting lines"
    plan: Plan
    journal: Journal[CountedUnit]

    def __call__(self, text: UnitText) -> Finish[CountedUnit]:
        count = sum(int(lines.count_lines(*block)) for block in body(text, self.plan.spec))
        return self.journal.unit(text.source, text.unit).finish(CountedUnit(text.finish(), count))
