"""The pass that encodes: each unit's lines become a shard per split, or a run of rows for a full shuffle."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dlrm_app.dataset.arrow import array_of
from dlrm_app.dataset.manifest import DenseColumn, Shard, SparseColumn
from dlrm_app.preprocess.encode.encoder import Encoded, Encoder
from dlrm_app.preprocess.passes.counting import TOTAL_KEYS, UNIT_KEYS, Sketch
from dlrm_app.preprocess.passes.plan import Plan
from dlrm_app.preprocess.passes.shuffle import open_shard, row_keys, write_run
from dlrm_app.preprocess.passes.targets import folds_of
from dlrm_app.preprocess.read.arrow_rows import ArrowCursor, open_cursor
from dlrm_app.preprocess.read.parser import Cursor, RejectedLine, write_rejects
from dlrm_app.preprocess.units.executor import Finish
from dlrm_app.preprocess.units.journal import Journal, Unit
from dlrm_app.preprocess.units.parquet_units import ParquetUnit
from dlrm_app.preprocess.units.unit_text import TextRange, UnitText


@dataclass(frozen=True)
class EncodedSplit:
    """Rows of a unit that go to one split; ``missing`` [N + F]: how many values of each column are.

    ``shard`` is None where rows are left in a run for a full shuffle; its path is relative to the journal's folder.
    """

    rows: int
    positives: int | None
    rejects: int
    missing: tuple[int, ...]
    shard: Shard | None


@dataclass(frozen=True)
class EncodedUnit:
    """``lines``: of the unit, rejected ones too; ``splits`` by name."""

    text: TextRange
    lines: int
    splits: dict[str, EncodedSplit]

    @property
    def rows(self) -> int:
        return sum(split.rows for split in self.splits.values())

    @property
    def rejects(self) -> int:
        return sum(split.rejects for split in self.splits.values())


@dataclass(frozen=True)
class EncodeUnits:
    """Encodes units into the journal's folder.

    ``<unit>.<split>.parquet``: a shard; ``<unit>.run``: rows for ``shuffle.Gather``; ``<unit>.sketch``: distinct
    values of the studied rows, where ``wants_sketch``; ``<unit>.rejects``: lines left out.
    """

    title: ClassVar[str] = "encoding"
    plan: Plan
    dense: tuple[DenseColumn, ...]
    sparse: tuple[SparseColumn, ...]
    wants_sketch: bool
    journal: Journal[EncodedUnit]
    folded: Path | None = None
    """Where the values of target columns by fold lie."""

    def __call__(self, text: UnitText | ParquetUnit) -> Finish[EncodedUnit]:
        unit = self.journal.unit(text.source, text.unit)
        cursor = open_cursor(text, self.plan.file_specs[text.source])
        max_keys = TOTAL_KEYS if text.unit == 0 and text.may_be_last else UNIT_KEYS
        sketches = [Sketch(max_keys) for _ in (self.plan.spec.sparse if self.wants_sketch else ())]
        rejects: list[RejectedLine] = []
        splits = {}
        for split, stop in self.plan.segments(text):
            splits[split] = self._encode(unit, split, stop, cursor, sketches, rejects)
        text_range = text.finish()
        if rejects:
            with unit.write(".rejects") as temporary:
                write_rejects(temporary, rejects)
        if self.wants_sketch:
            with unit.write(".sketch") as temporary, temporary.open("wb") as file:
                for sketch in sketches:
                    sketch.keep(UNIT_KEYS if text.unit or not text_range.is_last else TOTAL_KEYS)
                    sketch.write(file)
        return unit.finish(EncodedUnit(text_range, cursor.line, splits))

    def _encode(
        self,
        unit: Unit[EncodedUnit],
        split: str,
        stop: int | None,
        cursor: Cursor | ArrowCursor,
        sketches: Sequence[Sketch],
        rejects: list[RejectedLine],
    ) -> EncodedSplit:
        """Encodes the lines up to ``stop``, of ``split``; adds those left out to ``rejects``."""
        spec = self.plan.file_specs[cursor.text.source]
        folded = self.folded if split == "train" else None
        encoder = Encoder(spec, self.dense, self.sparse, self.plan.output, folded, self.plan.kept)
        is_studied = split in self.plan.studied
        missing = np.zeros(len(self.dense) + len(self.sparse), np.int64)
        rows = positives = 0

        def parts() -> Iterator[Encoded]:
            """The rows, a row group at a time; they are counted on the way."""
            nonlocal rows, positives
            for raw in cursor.rows(self.plan.row_group_rows, stop):
                first, rows = rows, rows + len(raw.labels)
                folds = None if folded is None else folds_of(self.plan.seed, cursor.text, first, rows - first)
                encoded = encoder.encode(raw, folds)
                positives += int(raw.labels.sum())
                missing[:] += encoded.missing
                for keys, features in encoded.keys if is_studied and self.wants_sketch else ():
                    for column, feature in enumerate(features):
                        sketches[feature].add(keys[column])
                yield encoded

        if split == "train" and self.plan.shuffle != "none":
            table = pa.concat_tables([encoder.schema.empty_table(), *(part.table for part in parts())])
            shard = self._write_shuffled(unit, cursor.text, table.combine_chunks())
        else:
            with open_shard(unit, f".{split}.parquet", self.plan.row_group_rows, encoder.schema) as writer:
                for part in parts():
                    writer.write(part)
                shard = writer.finish()
        rejected = cursor.take_rejects()
        rejects += rejected
        labelled = positives if spec.label else None
        return EncodedSplit(rows, labelled, len(rejected), tuple(missing.tolist()), shard)

    def _write_shuffled(
        self, unit: Unit[EncodedUnit], text: UnitText | ParquetUnit, table: pa.Table
    ) -> Shard | None:
        """Writes the rows as a shard, and gives what the manifest says of it; for a full shuffle, as a run."""
        keys = row_keys(self.plan.seed, text.source, text.unit, len(table))
        if self.plan.shuffle == "full":
            with unit.write(".run") as temporary:
                write_run(temporary, table, keys)
            return None
        with open_shard(unit, ".train.parquet", self.plan.row_group_rows, table.schema) as writer:
            writer.write_table(table.take(array_of(np.argsort(keys))))
            return writer.finish()
