"""The input of a run and the split of each of its rows, as plain values that can be sent to any process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlrm_app.config.values import SPLITS
from dlrm_app.dataset.manifest import KeptColumn
from dlrm_app.encoding.row_hash import content_hashes, deal_keys
from dlrm_app.errors import Problem, refuse_if
from dlrm_app.journal import Finish, Journal
from dlrm_app.logs import lines
from dlrm_app.logs.arrow_rows import ArrowCursor
from dlrm_app.logs.parquet_columns import names_of
from dlrm_app.logs.parser import Cursor, body
from dlrm_app.logs.raw_columns import RawColumns
from dlrm_app.logs.sources.feeds import BundleFeed, InputFeed, InputUnit, unit_feeds
from dlrm_app.logs.sources.parquet_units import ParquetUnit, decoded_bytes, footer_of, schema_of, units_of
from dlrm_app.logs.sources.source import InputFile
from dlrm_app.logs.sources.store import Address
from dlrm_app.logs.sources.units import UnitExtent, bundle_files
from dlrm_app.logs.spec import Spec
from dlrm_app.preprocessing.passes.shuffle import row_keys
from dlrm_app.preprocessing.passes.time_split import TimeCuts, TimeSplit

_ROWS = 1 << 14
FOLDS, SHARES, NEGATIVES = 1, 2, 3
"""The purposes of dealing rows: folds of target columns, splits, and the negatives to keep."""


class SplitRows(NamedTuple):
    """Rows of a unit that go to ``split``.

    ``hashes`` [R]: random numbers by which rows are dealt, equal for copies of a row; None unless they are wanted.
    """

    split: str
    raw: RawColumns
    hashes: NDArray[np.uint64] | None


@dataclass(frozen=True)
class Cuts:
    """Cuts of the training input: lines [0, train) train, [train, val) validate, the others test."""

    train: int
    val: int


@dataclass(frozen=True)
class InputPlan:
    """The input of a run, its format, and the split of each line."""

    spec: Spec
    sources: tuple[InputFile, ...]
    unlabelled: frozenset[str]
    fractions: Mapping[str, float]
    unit_bytes: int
    row_group_rows: int
    shuffle: str
    seed: int
    output: Path
    kept_columns: tuple[KeptColumn, ...] = ()
    splits_by: str = "end"
    """"end": the last lines of the training input are val and test; "content": rows are dealt by their contents;
    otherwise the column of ``time_split``."""
    time_split: TimeSplit | None = None
    """The rule by which the times of rows decide their splits, if they do."""
    file_specs: tuple[Spec, ...] = ()
    """The format of each source; empty until the beginnings of the files are read."""
    cuts: Cuts | None = None
    """The cuts of the training input; None until its lines are counted, and if there are none."""
    time_cuts: TimeCuts | None = None
    """The moments that cut the training input; None until its times are counted, and if they do not matter."""
    contents_identify_rows: bool = True
    """False if too many different rows have the same content: then rows are dealt by their positions."""
    sampled: float = 1.0
    """The share of the train split's negatives to keep."""
    kept_before: Mapping[str, float] = field(default_factory=dict)
    """Split → the share of negatives that its input has kept, if it was sampled before."""
    first_lines: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """The number of each unit's first line among all lines of the training input; empty unless it is cut or sampled."""

    @property
    def splits(self) -> list[str]:
        """The splits of the dataset, in order."""
        given = {source.split for source in self.sources}
        return [split for split in SPLITS if split in given or split in self.cut_splits]

    @property
    def cut_splits(self) -> list[str]:
        """The splits that are cut off the training input, in order."""
        if self.time_split is not None:
            return self.time_split.names_of(self.fractions)
        return [split for split in SPLITS if split in self.fractions]

    @property
    def studied(self) -> set[str]:
        """The splits whose rows vocabularies, moments and statistics are made from."""
        return {"train"} if "train" in self.splits else set(self.splits)

    def sources_of(self, splits: set[str]) -> list[InputFile]:
        """The sources of ``splits``."""
        return [source for source in self.sources if source.split in splits]

    def columns_of(self, source: InputFile) -> dict[str, str]:
        """Column → its name in a Parquet file."""
        return names_of(source, self.file_specs[source.index])

    def bundles(self, sources: Sequence[InputFile]) -> list[tuple[InputFile, ...]]:
        """``sources`` in order; consecutive small ones of the same split and columns form one unit."""
        return bundle_files(sources, self._unit_size, self._bundle_key, self.unit_bytes)

    def _unit_size(self, source: InputFile) -> int:
        """About the bytes of the text or the decoded values of ``source``."""
        if source.format != "parquet":
            return source.text_bytes
        columns = self.file_specs[source.index].columns
        size = decoded_bytes(source, sum(column.role != "ignore" for column in columns))
        # an object is fetched whole
        return max(size, source.bytes) if isinstance(source.path, Address) else size

    def _bundle_key(self, source: InputFile) -> object:
        """A key that is equal for sources that can be read as one file."""
        spec = self.file_specs[source.index]
        if source.format != "parquet":
            return source.split, spec
        return source.split, spec.columns, schema_of(source), tuple(source.partition)

    def feeds(
        self, bundle: tuple[InputFile, ...], is_wanted: Callable[[int], bool] = lambda _: True
    ) -> Sequence[InputFeed]:
        """Feeds of the units of ``bundle`` whose numbers are wanted; several sources have one feed."""
        source = bundle[0]
        columns = self.columns_of(source) if source.format == "parquet" else {}
        if len(bundle) == 1:
            return unit_feeds(source, columns, self.unit_bytes, is_wanted)
        is_all = len(bundle) == len(self.sources_of({source.split}))
        return [BundleFeed(bundle, columns, self.unit_bytes, self.spec.header, is_all)]

    def counted(self, bundle: tuple[InputFile, ...]) -> list[tuple[tuple[int, int], int]]:
        """((source, unit), rows) of each unit of Parquet files; empty for text, whose lines must be counted."""
        source = bundle[0]
        if source.format != "parquet":
            return []
        if len(bundle) > 1:
            return [((source.index, 0), sum(footer_of(each).num_rows for each in bundle))]
        units = units_of(source, len(self.columns_of(source)), self.unit_bytes)
        return [((source.index, number), unit.stop - unit.start) for number, unit in enumerate(units)]

    def has_label(self, split: str) -> bool:
        return self.spec.label is not None and split not in self.unlabelled

    @property
    def kept_shares(self) -> dict[str, float]:
        """Split → the share of all its negatives that it keeps, for labelled splits that were sampled."""
        own = {"train": self.sampled}
        shares = {name: self.kept_before.get(name, 1.0) * own.get(name, 1.0) for name in self.splits}
        return {name: share for name, share in shares.items() if share < 1 and self.has_label(name)}

    @property
    def has_clicks(self) -> bool:
        """True if there are training rows with labels."""
        return self.has_label("train") and bool(self.sources_of({"train"}))

    def segments(self, unit: InputUnit) -> list[tuple[str, int | None]]:
        """The segments of a unit in order: (split, the line that ends the segment; None for the last one)."""
        split = self.sources[unit.source].split
        if self.cuts is None or split != "train":
            return [(split, None)]
        segments: list[tuple[str, int | None]] = []
        first, start = self.first_lines[unit.source, unit.unit], 0
        for split, stop in ("train", self.cuts.train - first), ("val", self.cuts.val - first):
            if stop > start:
                segments.append((split, stop))
                start = stop
        return [*segments, ("test", None)]

    def splits_of(self, split: str) -> list[str]:
        """The splits that the rows of segment ``split`` are dealt to."""
        is_dealt = split == "train" and self.splits_by != "end"
        return [split, *self.cut_splits] if is_dealt else [split]

    def rows(
        self,
        unit: InputUnit,
        cursor: Cursor | ArrowCursor,
        capacity: int = _ROWS,
        *,
        wants_hashes: bool = False,
    ) -> Iterator[SplitRows]:
        """The rows of ``unit`` by split, up to ``capacity`` at a time, valid until the next are requested."""
        first = 0
        for split, stop in self.segments(unit):
            for raw in cursor.rows(capacity, stop):
                yield from self.deal(split, raw, unit, cursor, first, wants_hashes=wants_hashes)
                first += len(raw.labels)

    def deal(
        self,
        split: str,
        raw: RawColumns,
        unit: InputUnit,
        cursor: Cursor | ArrowCursor,
        first: int,
        *,
        wants_hashes: bool,
    ) -> Iterator[SplitRows]:
        """Deals rows of segment ``split`` to splits, without the negatives that sampling leaves out.

        ``raw``: the rows that ``cursor`` has just read from ``unit``; ``first``: the first one's number in it.
        """
        names = self.splits_of(split)
        is_kept = self._is_kept(raw, unit, cursor) if split == "train" and self.sampled < 1 else None
        if len(names) == 1:
            hashes = self._hashes(raw, unit, first) if wants_hashes else None
            if is_kept is None:
                yield SplitRows(split, raw, hashes)
            elif len(rows := np.flatnonzero(is_kept)):
                yield SplitRows(split, raw.take(rows), None if hashes is None else hashes[rows])
            return
        hashes = self._hashes(raw, unit, first) if wants_hashes or self.time_split is None else None
        which = self._split_numbers(raw, hashes)
        for number, name in enumerate(names):
            is_chosen = which == number
            rows = np.flatnonzero(is_chosen if is_kept is None or name != "train" else is_chosen & is_kept)
            if len(rows):
                yield SplitRows(name, raw.take(rows), None if hashes is None else hashes[rows])

    def _split_numbers(self, raw: RawColumns, hashes: NDArray[np.uint64] | None) -> NDArray[np.int64]:
        """The number of each row's split [R], in the order train, then ``cut_splits``: by its time or its content."""
        if self.time_cuts is not None:
            names = [column.name for column in self.spec.times]
            return self.time_cuts.split_numbers(raw.times[names.index(self.time_cuts.column)])
        assert hashes is not None, "rows without cuts by time are dealt by hashes"
        places = deal_keys(hashes, self.seed, SHARES) / 2.0**64  # 0 to 1
        ends = list(accumulate([1 - sum(self.fractions.values()), *self.fractions.values()]))
        return np.searchsorted(ends[:-1], places, side="right")

    def _is_kept(self, raw: RawColumns, unit: InputUnit, cursor: Cursor | ArrowCursor) -> NDArray[np.bool_]:
        """False for negatives that sampling leaves out, drawn by a hash of the seed and the line's number."""
        lines = (self.first_lines[unit.source, unit.unit] + cursor.row_lines()).astype(np.uint64)
        drawn = deal_keys(lines, self.seed, NEGATIVES)
        return (raw.labels > 0) | (drawn < np.uint64(int(self.sampled * 2**64)))

    def _hashes(self, raw: RawColumns, unit: InputUnit, first: int) -> NDArray[np.uint64]:
        if self.contents_identify_rows:
            return content_hashes(raw, self.file_specs[unit.source])
        return row_keys(self.seed, unit.source, unit.unit, len(raw.labels), first)


def cut_lines(lines: Mapping[tuple[int, int], int], fractions: Mapping[str, float]) -> Cuts:
    """Cuts ``fractions`` of all lines off the end, rounded down. ``lines``: the number of lines of each unit, in order.

    Raises ConfigError if a fraction is less than a line.
    """
    total = sum(lines.values())
    sizes = {name: int(total * fraction) for name, fraction in fractions.items()}
    refuse_if(
        [
            Problem(
                f"split.{name}={fractions[name]}",
                f"of the {total:,} lines of input.train is less than one, so the {name} split has no rows",
                f"give split.{name}={2 / total:.2g} or more",
            )
            for name, size in sizes.items()
            if not size
        ]
    )
    val = total - sizes.get("test", 0)
    return Cuts(val - sizes.get("val", 0), val)


@dataclass(frozen=True)
class CountedUnit:
    """A unit with its number of lines, without the file's header, and of ``rows``, in passes that count them."""

    extent: UnitExtent
    lines: int
    rows: int = 0


@dataclass(frozen=True)
class CountLines:
    """Counts the lines of each unit."""

    title: ClassVar[str] = "counting lines"
    reads: ClassVar[tuple[str, ...]] = ()
    plan: InputPlan
    journal: Journal[CountedUnit]

    def __call__(self, unit: InputUnit) -> Finish[CountedUnit]:
        assert not isinstance(unit, ParquetUnit), "a footer of Parquet has the number of rows"
        count = sum(int(lines.count_lines(*block)) for block in body(unit, self.plan.spec))
        return self.journal.begin(unit.name).finish(CountedUnit(unit.finish(), count))
