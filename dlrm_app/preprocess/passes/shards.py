"""Row groups → a Parquet shard under its final name, checksum included."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import pyarrow as pa

from dlrm_app.dataset.dictionary import IndexedRows
from dlrm_app.dataset.manifest import Shard
from dlrm_app.dataset.parquet import ParquetWriter
from dlrm_app.preprocess.encode.encoder import Encoded
from dlrm_app.preprocess.passes.plan import ShardLayout
from dlrm_app.preprocess.units.journal import Unit


class ShardWriter:
    """Writes rows of ``schema`` as row groups to ``file``."""

    def __init__(self, file: BinaryIO, layout: ShardLayout, schema: pa.Schema, name: str = "") -> None:
        """``name``: what ``finish`` calls the file."""
        self._file, self._name = file, name
        self._size, self._digest = 0, hashlib.sha256()
        self._writer = ParquetWriter(self._append, schema, layout.compression, layout.compression_level)
        self._row_group_rows = layout.row_group_rows
        self.row_groups: list[int] = []

    def _append(self, data: bytes) -> None:
        self._digest.update(data)
        self._size += len(data)
        self._file.write(data)

    def write(self, rows: Encoded) -> None:
        """Adds ``rows`` as one row group."""
        self._writer.write(rows)
        self.row_groups.append(len(rows))

    def write_table(self, table: pa.Table) -> None:
        """Adds ``table`` as row groups of the layout's size."""
        for start in range(0, len(table), self._row_group_rows):
            part = table.slice(start, self._row_group_rows)
            self._writer.write(IndexedRows.of(part))
            self.row_groups.append(len(part))

    def finish(self) -> Shard:
        """What the manifest says of the shard. One without rows stays out of the dataset."""
        self._writer.close()
        return Shard(
            path=self._name,
            rows=sum(self.row_groups),
            bytes=self._size,
            checksum=f"sha256:{self._digest.hexdigest()}",
            row_groups=self.row_groups,
        )


@contextmanager
def open_shard(unit: Unit[Any], suffix: str, layout: ShardLayout, schema: pa.Schema) -> Iterator[ShardWriter]:
    """A shard among the files of ``unit``; call ``finish`` in the block."""
    with unit.write(suffix) as temporary, temporary.open("wb") as file:
        yield ShardWriter(file, layout, schema, unit.path(suffix).name)
