"""The pass that encodes: each unit's lines become a shard per split, or a run of rows for a full shuffle."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dlrm_app.data.manifest import DenseColumn, SparseColumn
from dlrm_app.files import written_whole
from dlrm_app.preprocess.encode import Encoded, Encoder
from dlrm_app.preprocess.journal import Journal
from dlrm_app.preprocess.parser import Parser
from dlrm_app.preprocess.passes import Cursor, segments, summary
from dlrm_app.preprocess.plan import Cuts, Plan, Segment
from dlrm_app.preprocess.rejects import write_entries
from dlrm_app.preprocess.shards import ShardWriter, open_shard
from dlrm_app.preprocess.shuffle import row_keys, write_run
from dlrm_app.preprocess.sketch import TOTAL_KEYS, UNIT_KEYS, Sketch, SketchFile
from dlrm_app.preprocess.units import UnitText


@dataclass
class _Tally:
    """What is counted while rows of one split go by."""

    missing: NDArray[np.int64]
    rows: int = 0
    positives: int = 0


@dataclass(frozen=True)
class EncodeUnits:
    """Encodes units into the journal's folder.

    ``<unit>.<split>.parquet``: a shard; ``<unit>.run``: rows for ``shuffle.Gather``; ``<unit>.sketch``: distinct
    values of the studied rows, where ``wants_sketch``; ``<unit>.rejects``: lines left out.
    """

    plan: Plan
    cuts: Cuts | None
    dense: tuple[DenseColumn, ...]
    sparse: tuple[SparseColumn, ...]
    wants_sketch: bool
    journal: Journal

    def __call__(self, text: UnitText) -> dict[str, Any]:
        cursor = Cursor(text, self.plan.spec)
        max_keys = TOTAL_KEYS if text.unit == 0 and text.may_be_last else UNIT_KEYS
        sketches = [Sketch(max_keys) for _ in self.plan.spec.sparse]
        entries: list[dict[str, Any]] = []
        splits = {}
        for segment in segments(self.plan, self.cuts, text):
            splits[segment.split] = self._encode(segment, cursor, sketches)
            rejects = cursor.take_rejects()
            splits[segment.split]["rejects"] = len(rejects)
            entries += rejects
        result = {**summary(text), "lines": cursor.line, "splits": splits}
        if text.unit or not text.is_last:
            for sketch in sketches:
                sketch.keep(UNIT_KEYS)
        if entries:
            with written_whole(self.journal.path(text.source, text.unit, ".rejects")) as temporary:
                write_entries(temporary, entries)
        if self.wants_sketch:
            with written_whole(self.journal.path(text.source, text.unit, ".sketch")) as temporary:
                SketchFile(temporary, len(sketches)).write(sketches)
        self.journal.land(text.source, text.unit, result)
        return result

    def _encode(self, segment: Segment, cursor: Cursor, sketches: list[Sketch]) -> dict[str, Any]:
        text, spec = cursor.text, self.plan.spec_of(segment.split)
        tally = _Tally(np.zeros(len(self.dense) + len(self.sparse), np.int64))
        if not (self.wants_sketch and segment.split in self.plan.studied):
            sketches = []
        encoder = Encoder(spec, self.dense, self.sparse, self.plan.output)
        parts = self._parts(cursor, segment, encoder, tally, sketches)
        if segment.split == "train" and self.plan.shuffle != "none":
            table = pa.concat_tables([encoder.schema.empty_table(), *(part.table for part in parts)])
            shard = self._write_shuffled(text, table.combine_chunks())
        else:
            with self._open_shard(text, segment.split, encoder.schema) as writer:
                for part in parts:
                    writer.write(part)
                shard = writer.finish()
        return {
            "rows": tally.rows,
            "positives": tally.positives if spec.label else None,
            "missing": tally.missing.tolist(),
            "shard": shard,
        }

    def _parts(
        self, cursor: Cursor, segment: Segment, encoder: Encoder, tally: _Tally, sketches: list[Sketch]
    ) -> Iterator[Encoded]:
        """The segment's rows, a row group at a time; they are counted on the way."""
        parser = Parser(self.plan.spec_of(segment.split), self.plan.layout.row_group_rows)
        for raw in cursor.rows(parser, segment.stop):
            encoded = encoder.encode(raw)
            tally.rows += len(encoded)
            tally.positives += int(raw.labels.sum())
            tally.missing += encoded.missing
            for sketch, keys in zip(sketches, encoded.keys, strict=False):
                sketch.add(keys)
            yield encoded

    def _write_shuffled(self, text: UnitText, table: pa.Table) -> dict[str, Any] | None:
        """Writes the rows as a shard, and gives what the manifest says of it; for a full shuffle, as a run."""
        place = (text.source, text.unit)
        keys = row_keys(self.plan.seed, *place, len(table))
        if self.plan.shuffle == "full":
            write_run(self.journal.path(*place, ".run"), table, keys)
            return None
        with self._open_shard(text, "train", table.schema) as writer:
            writer.write_table(table.take(pa.array(np.argsort(keys))))
            return writer.finish()

    def _open_shard(
        self, text: UnitText, split: str, schema: pa.Schema
    ) -> AbstractContextManager[ShardWriter]:
        path = self.journal.path(text.source, text.unit, f".{split}.parquet")
        return open_shard(path, self.plan.layout, schema)
