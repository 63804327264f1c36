"""The last pass over rows that were encoded with vocabularies that grow: ids for now become the ids that were given.

Only columns with such ids are written again; the others of a shard are copied as they stand in the file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dlrm_app.dataset.arrow import array_of, numbers_of
from dlrm_app.dataset.dictionary import IndexedRows
from dlrm_app.dataset.manifest import Shard, SparseColumn
from dlrm_app.dataset.parquet import Chunk
from dlrm_app.preprocess.encode.sparse import load_vocabulary
from dlrm_app.preprocess.passes.encode_pass import EncodedUnit
from dlrm_app.preprocess.passes.plan import Plan
from dlrm_app.preprocess.passes.shuffle import ShardWriter, open_shard
from dlrm_app.preprocess.passes.unit_counts import given_ids
from dlrm_app.preprocess.units.executor import Finish
from dlrm_app.preprocess.units.journal import Journal


@dataclass(frozen=True)
class NewIds:
    """The ids that stand for those for now: id ``first + i`` becomes ``ids[i]``."""

    first: int
    ids: NDArray[np.int32]

    def has_any(self, column: pa.Array) -> bool:
        """True if ``column`` has an id for now."""
        ids = numbers_of(column.values if pa.types.is_list(column.type) else column)
        return bool(len(ids)) and int(ids.max()) >= self.first

    def placed(self, column: pa.Array) -> pa.Array:
        """``column``, ids or lists of them, with the ids that were given."""
        if pa.types.is_list(column.type):
            return pa.ListArray.from_arrays(column.offsets, self.placed(column.values), type=column.type)
        ids = numbers_of(column)
        is_for_now = ids >= self.first
        out = ids.copy()
        out[is_for_now] = self.ids[ids[is_for_now] - self.first]
        return array_of(out)


@dataclass(frozen=True)
class PlacedUnit:
    """What has other bytes than were encoded: shards by split, the run for a full shuffle; relative to the journal's folder."""

    shards: dict[str, Shard] = field(default_factory=dict)
    run: str | None = None


@dataclass(frozen=True)
class PlaceIds:
    """Puts ids that were given into the rows of unit ``number`` of ``units``.

    before: columns as they were encoded; ``after``: with the vocabularies in the output.
    """

    title: ClassVar[str] = "placing new ids"
    plan: Plan
    encoded: Journal[EncodedUnit]
    units: tuple[EncodedUnit, ...]
    before: tuple[SparseColumn, ...]
    after: tuple[SparseColumn, ...]
    journal: Journal[PlacedUnit]

    def __call__(self, number: int) -> Finish[PlacedUnit]:
        unit = self.units[number]
        made, placed = self.journal.unit(0, number), PlacedUnit()
        if new := self._new_ids(unit):
            for name, part in unit.splits.items():
                if part.shard is not None and part.rows:
                    path = self.encoded.folder / part.shard.path
                    with open_shard(
                        made, f".{name}.parquet", self.plan.row_group_rows, pq.read_schema(path)
                    ) as writer:
                        placed.shards[name] = _write_shard(path, new, writer)
            run = self.encoded.path(unit.text.source, unit.text.unit, ".run")
            if run.exists():
                with made.write(".run") as temporary:
                    _write_run(run, new, temporary)
                placed = replace(placed, run=made.path(".run").name)
        return made.finish(placed)

    def _new_ids(self, unit: EncodedUnit) -> Mapping[str, NewIds]:
        """Column → its ids, of columns with values that had no id."""
        path = self.encoded.path(unit.text.source, unit.text.unit, ".counts")
        features = {column.name: number for number, column in enumerate(self.plan.spec.sparse)}
        return {
            old.name: NewIds(
                old.num_embeddings,
                given_ids(path, features[old.name], load_vocabulary(self.plan.output, new)),
            )
            for old, new in zip(self.before, self.after, strict=True)
            if old.name in features and unit.newcomers[features[old.name]]
        }


def _write_shard(path: Path, new: Mapping[str, NewIds], writer: ShardWriter) -> Shard:
    with path.open("rb") as file, pq.ParquetFile(path) as shard:
        schema = shard.schema_arrow
        empty = [column.combine_chunks() for column in schema.empty_table().columns]
        for index in range(shard.num_row_groups):
            metadata = shard.metadata.row_group(index)
            read = shard.read_row_group(index, columns=[*new], use_threads=False)
            columns, copied = list(empty), {}
            for number, name in enumerate(schema.names):
                column = read.column(name).combine_chunks() if name in new else None
                if column is not None and new[name].has_any(column):
                    columns[number] = new[name].placed(column)
                else:
                    copied[number] = Chunk.copied(file, metadata.column(number))
            writer.write(IndexedRows(schema, columns, None, metadata.num_rows), copied)
        return writer.finish()


def _write_run(path: Path, new: Mapping[str, NewIds], target: Path) -> None:
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
        for number, field_ in enumerate(table.schema):
            if field_.name in new:
                column = table.column(number).combine_chunks()
                table = table.set_column(number, field_, new[field_.name].placed(column))
        with pa.OSFile(str(target), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
