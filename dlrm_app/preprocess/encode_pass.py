"""The pass that makes shards: one for each unit and split."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dlrm_app.data.manifest import DenseColumn, SparseColumn
from dlrm_app.files import written_whole
from dlrm_app.preprocess.encode import Encoder
from dlrm_app.preprocess.journal import Journal
from dlrm_app.preprocess.parser import Parser
from dlrm_app.preprocess.passes import Cursor, body, segments, summary
from dlrm_app.preprocess.plan import Cuts, Plan, Segment
from dlrm_app.preprocess.rejects import describe, write_entries
from dlrm_app.preprocess.shards import open_shard
from dlrm_app.preprocess.units import UnitText


@dataclass(frozen=True)
class EncodeUnits:
    """Turns a unit's lines into shards ``<unit>.<split>.parquet`` in the journal's folder."""

    plan: Plan
    cuts: Cuts | None
    dense: tuple[DenseColumn, ...]
    sparse: tuple[SparseColumn, ...]
    journal: Journal

    def __call__(self, text: UnitText) -> dict[str, Any]:
        cursor = Cursor(text, body(text, self.plan.spec))
        entries: list[dict[str, Any]] = []
        splits = {}
        for segment in segments(self.plan, self.cuts, text):
            splits[segment.split] = self._encode(segment, cursor)
            spec = self.plan.spec_of(segment.split)
            entries += [describe(reject, spec, text.text) for reject in cursor.take_rejects()]
        if entries:
            with written_whole(self.journal.path(text.source, text.unit, ".rejects")) as temporary:
                write_entries(temporary, entries)
        result = {**summary(text), "lines": cursor.line, "splits": splits}
        self.journal.land(text.source, text.unit, result)
        return result

    def _encode(self, segment: Segment, cursor: Cursor) -> dict[str, Any]:
        text, spec = cursor.text, self.plan.spec_of(segment.split)
        parser = Parser(spec, self.plan.layout.row_group_rows)
        encoder = Encoder(spec, self.dense, self.sparse, self.plan.output)
        missing = np.zeros(len(self.dense) + len(self.sparse), np.int64)
        positives = 0
        path = self.journal.path(text.source, text.unit, f".{segment.split}.parquet")
        with open_shard(path, encoder.schema, self.plan.layout) as writer:
            for raw in cursor.rows(parser, segment.stop):
                table, count = encoder.encode(raw)
                missing += count
                positives += int(raw.labels.sum())
                writer.write(table)
            shard = writer.finish()
        return {
            "rejects": len(cursor.rejects),
            "positives": positives if spec.label else None,
            "missing": missing.tolist(),
            "shard": shard,
        }
