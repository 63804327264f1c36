"""The pass that encodes: the lines of a unit become a shard for each split, or a run of rows for a full shuffle."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dlrm_app.dataset.arrow import array_of
from dlrm_app.dataset.label_counts import WIDTH, count_labels
from dlrm_app.dataset.manifest import DenseColumn, SparseColumn
from dlrm_app.dataset.splits import Shard, ValueCounts
from dlrm_app.dataset.vector_columns import VectorColumn
from dlrm_app.encoding.encoder import Encoded, Encoder
from dlrm_app.encoding.row_samples import KnownShare, RowSample, RowSampler
from dlrm_app.encoding.value_shares import ValueCounter
from dlrm_app.journal import Finish, Journal, WorkFiles
from dlrm_app.logs.arrow_rows import ArrowCursor, open_cursor
from dlrm_app.logs.parser import Cursor
from dlrm_app.logs.rejects import RejectedLine, write_rejects
from dlrm_app.logs.sources.feeds import InputUnit
from dlrm_app.logs.sources.units import UnitExtent
from dlrm_app.preprocessing.passes.distinct import TOTAL_KEYS, UNIT_KEYS, Sketch
from dlrm_app.preprocessing.passes.plan import InputPlan, SplitRows
from dlrm_app.preprocessing.passes.shuffle import open_shard, row_keys, write_run
from dlrm_app.preprocessing.passes.targets import folds_of
from dlrm_app.preprocessing.passes.time_order import VAL_TIMES, SplitTimes


@dataclass(frozen=True)
class EncodedSplit:
    """The rows of a unit that go to one split.

    ``missing`` [N + F + V]: the number of missing values of each column.
    ``shard``: the rows' shard, whose path is relative to the journal's folder; None if a full shuffle moves them later.
    ``known``: in a sample of the rows, those whose own clicks are in the target columns that encode them.
    ``weights``: the sums of the weights of all rows and of the positives, if rows have weights.
    ``left_out``: the number of negatives that sampling left out.
    ``labels``: the counts of each other label.
    ``values``: column → the counts of its values; empty for splits whose values are not counted.
    ``newest``: time column → the newest time of the training rows, if the position of lines decides the splits.
    """

    rows: int
    positives: int | None
    rejects: int
    missing: tuple[int, ...]
    shard: Shard | None
    known: KnownShare
    weights: tuple[float, float] | None = None
    left_out: int = 0
    labels: tuple[tuple[float, ...], ...] = ()
    values: dict[str, ValueCounts] = field(default_factory=dict)
    newest: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EncodedUnit:
    """The record of an encoded unit.

    ``lines``: its lines, including rejected ones.
    ``splits``: by name.
    """

    extent: UnitExtent
    lines: int
    splits: dict[str, EncodedSplit]

    @property
    def rows(self) -> int:
        return sum(split.rows for split in self.splits.values())

    @property
    def rejects(self) -> int:
        return sum(split.rejects for split in self.splits.values())

    @property
    def left_out(self) -> int:
        return sum(split.left_out for split in self.splits.values())


@dataclass(frozen=True)
class EncodeUnits:
    """Encodes units into the journal's folder.

    <unit>.<split>.parquet  a shard
    <unit>.run              rows for ``shuffle.Gather``
    <unit>.sketch           distinct values of the studied rows, if ``wants_sketch``
    <unit>.contents         a sample of the rows, if ``wants_contents``
    <unit>.val.times        the times of val's rows, if lines decide the splits
    <unit>.rejects          lines left out
    """

    title: ClassVar[str] = "encoding"
    reads: ClassVar[tuple[str, ...]] = ("targets/*",)
    plan: InputPlan
    dense: tuple[DenseColumn, ...]
    sparse: tuple[SparseColumn, ...]
    wants_sketch: bool
    journal: Journal[EncodedUnit]
    folded: Path | None = None
    """The folder with the values of target columns by fold."""
    wants_contents: bool = False
    learnt: RowSample | None = None
    """A sample of the rows whose clicks are in the target columns."""
    counted: frozenset[str] = frozenset()
    """The splits whose values are counted."""
    vectors: tuple[VectorColumn, ...] = ()

    def __call__(self, unit: InputUnit) -> Finish[EncodedUnit]:
        files = self.journal.begin(unit.name)
        cursor = open_cursor(unit, self.plan.file_specs[unit.source])
        max_keys = TOTAL_KEYS if unit.unit == 0 and unit.may_be_last else UNIT_KEYS
        sketches = [Sketch(max_keys) for _ in (self.plan.spec.sparse if self.wants_sketch else ())]
        rejects: list[RejectedLine] = []
        contents = RowSampler()
        splits: dict[str, EncodedSplit] = {}
        for split, stop in self.plan.segments(unit):
            splits |= self._encode(files, unit, split, stop, cursor, sketches, contents, rejects)
        extent = unit.finish()
        if rejects:
            with files.write(".rejects") as temporary:
                write_rejects(temporary, rejects)
        if self.wants_sketch:
            with files.write(".sketch") as temporary, temporary.open("wb") as file:
                for sketch in sketches:
                    sketch.keep(UNIT_KEYS if unit.unit or not extent.is_last else TOTAL_KEYS)
                    sketch.write(file)
        if self.wants_contents:
            with files.write(".contents") as temporary:
                contents.sample.write(temporary)
        return files.finish(EncodedUnit(extent, cursor.line, splits))

    def _encode(
        self,
        files: WorkFiles[EncodedUnit],
        unit: InputUnit,
        segment: str,
        stop: int | None,
        cursor: Cursor | ArrowCursor,
        sketches: Sequence[Sketch],
        contents: RowSampler,
        rejects: list[RejectedLine],
    ) -> dict[str, EncodedSplit]:
        """Encodes the lines of ``segment``, up to line ``stop``, and adds those left out to ``rejects``.

        Returns its splits.
        """
        first = 0
        by_content = self.plan.contents_identify_rows
        wants_hashes = self.folded is not None or self.wants_contents or self.learnt is not None
        with ExitStack() as opened:
            parts = {
                split: _SplitPart(self, files, unit, split, sketches, opened)
                for split in self.plan.splits_of(segment)
            }
            for raw in cursor.rows(self.plan.row_group_rows, stop):
                for split_rows in self.plan.deal(
                    segment, raw, unit, cursor, first, wants_hashes=wants_hashes
                ):
                    parts[split_rows.split].add(split_rows)
                    if self.wants_contents and by_content and split_rows.hashes is not None:
                        contents.add(split_rows.hashes)
                first += len(raw.labels)
            found = {split: part.finish() for split, part in parts.items()}
        rejected = cursor.take_rejects()
        rejects += rejected
        left_out = first - sum(split.rows for split in found.values())
        found[segment] = replace(found[segment], rejects=len(rejected), left_out=left_out)
        return found

    def write_shuffled(self, files: WorkFiles[EncodedUnit], unit: InputUnit, table: pa.Table) -> Shard | None:
        """Writes the rows as a shard and returns its entry in the manifest; for a full shuffle, writes a run."""
        keys = row_keys(self.plan.seed, unit.source, unit.unit, len(table))
        if self.plan.shuffle == "full":
            with files.write(".run") as temporary:
                write_run(temporary, table, keys)
            return None
        with open_shard(files, ".train.parquet", self.plan.row_group_rows, table.schema) as writer:
            writer.write_table(table.take(array_of(np.argsort(keys))))
            return writer.finish()


class _SplitPart:
    """Encodes the rows of a unit that go to one split."""

    def __init__(
        self,
        work: EncodeUnits,
        files: WorkFiles[EncodedUnit],
        unit: InputUnit,
        split: str,
        sketches: Sequence[Sketch],
        opened: ExitStack,
    ) -> None:
        self._work, self._files, self._unit, self._split = work, files, unit, split
        plan = work.plan
        self._folded = work.folded if split == "train" else None
        spec = plan.file_specs[unit.source]
        self._encoder = Encoder(
            spec, work.dense, work.sparse, plan.output, self._folded, plan.kept_columns, work.vectors
        )
        self._sketches = sketches if split in plan.studied and work.wants_sketch else ()
        self._learnt = work.learnt if self._folded is None and plan.contents_identify_rows else None
        columns = work.dense, work.sparse, work.vectors
        self._counter = ValueCounter(*columns) if split in work.counted else None
        self._missing = np.zeros(sum(map(len, columns)), np.int64)
        self._rows = self._positives = 0
        self._is_weighted, self._weights = spec.is_weighted, np.zeros(2)
        self._labels = np.zeros((len(spec.other_labels), WIDTH))
        self._known = KnownShare()
        self._times = SplitTimes(spec, split) if plan.cuts is not None else None
        self._tables: list[pa.Table] = []
        self._writer = None
        if split != "train" or plan.shuffle == "none":
            writer = open_shard(files, f".{split}.parquet", plan.row_group_rows, self._encoder.schema)
            self._writer = opened.enter_context(writer)

    def add(self, split_rows: SplitRows) -> None:
        encoded = self._encode(split_rows)
        if self._writer is None:
            self._tables.append(encoded.table)
        else:
            self._writer.write(encoded)

    def _encode(self, split_rows: SplitRows) -> Encoded:
        raw, hashes, plan = split_rows.raw, split_rows.hashes, self._work.plan
        folds = None if self._folded is None or hashes is None else folds_of(plan.seed, hashes)
        if self._learnt is not None and hashes is not None:
            self._known += self._learnt.count_of(hashes)
        if self._times is not None:
            self._times.add(raw.times)
        counter, wants_keys = self._counter, bool(self._sketches)
        encoded = self._encoder.encode(raw, folds, wants_keys=wants_keys, counts_unseen=counter is not None)
        if counter is not None:
            counter.add(encoded)
        self._rows += len(raw.labels)
        self._positives += int(raw.labels.sum())
        if self._is_weighted:
            weights = raw.weights.astype(np.float32).astype(np.float64)
            self._weights += weights.sum(), weights @ raw.labels
        if len(self._labels):
            self._labels += count_labels(plan.spec.labels, raw.labels, raw.other_labels, raw.weights)
        self._missing += encoded.missing
        for feature, feature_keys in encoded.keys.items():
            self._sketches[feature].add(feature_keys)
        return encoded

    def finish(self) -> EncodedSplit:
        if self._writer is not None:
            shard: Shard | None = self._writer.finish()
        else:
            table = pa.concat_tables([self._encoder.schema.empty_table(), *self._tables]).combine_chunks()
            shard = self._work.write_shuffled(self._files, self._unit, table)
        labelled = self._positives if self._work.plan.spec.label else None
        weights = (float(self._weights[0]), float(self._weights[1])) if self._is_weighted else None
        labels = tuple(map(tuple, self._labels.tolist()))
        values = self._counter.counts() if self._counter else {}
        return EncodedSplit(
            self._rows,
            labelled,
            0,
            tuple(self._missing.tolist()),
            shard,
            self._known,
            weights,
            labels=labels,
            values=values,
            newest=self._finish_times(),
        )

    def _finish_times(self) -> dict[str, float]:
        """Writes the times of val; returns the newest ones of train."""
        if self._times is None:
            return {}
        if self._split == "val":
            with self._files.write(VAL_TIMES) as temporary:
                self._times.write(temporary)
        return self._times.newest()
