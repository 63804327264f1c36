"""Row groups → a Parquet shard under its final name, checksum included."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import pyarrow as pa

from dlrm_app.data.manifest import Shard
from dlrm_app.preprocess.encode.encoder import Encoded
from dlrm_app.preprocess.job.journal import Unit
from dlrm_app.preprocess.write.parquet import ParquetWriter


@dataclass(frozen=True)
class ShardLayout:
    """How shards are written; see docs/how-to/preprocessing.md for the measurements behind the defaults."""

    row_group_rows: int
    compression: str
    compression_level: int | None


@dataclass
class HashedFile:
    """A file to write, its size and checksum so far."""

    file: BinaryIO
    size: int = 0
    digest: Any = field(default_factory=hashlib.sha256)

    def write(self, data: bytes) -> None:
        self.digest.update(data)
        self.size += len(data)
        self.file.write(data)


class ShardWriter:
    """Writes rows of ``schema`` as row groups."""

    def __init__(self, file: HashedFile, layout: ShardLayout, schema: pa.Schema, name: str = "") -> None:
        """``name``: the file's, under which ``finish`` speaks of it."""
        self._file, self._name = file, name
        self._writer = ParquetWriter(file.write, schema, layout.compression, layout.compression_level)
        self._row_group_rows = layout.row_group_rows
        self.row_groups: list[int] = []

    def write(self, rows: Encoded) -> None:
        """Adds ``rows`` as one row group."""
        self._writer.write_group(rows.columns, len(rows), rows.indexed)
        self.row_groups.append(len(rows))

    def write_table(self, table: pa.Table) -> None:
        """Adds ``table`` as row groups of the layout's size."""
        for start in range(0, len(table), self._row_group_rows):
            part = table.slice(start, self._row_group_rows)
            self._writer.write_group([column.combine_chunks() for column in part.columns], len(part))
            self.row_groups.append(len(part))

    def finish(self) -> Shard:
        """What the manifest says of the shard. One without rows stays out of the dataset."""
        self._writer.close()
        return Shard(
            path=self._name,
            rows=sum(self.row_groups),
            bytes=self._file.size,
            checksum=f"sha256:{self._file.digest.hexdigest()}",
            row_groups=self.row_groups,
        )


@contextmanager
def open_shard(unit: Unit[Any], suffix: str, layout: ShardLayout, schema: pa.Schema) -> Iterator[ShardWriter]:
    """A shard among the files of ``unit``; call ``finish`` in the block."""
    with unit.write(suffix) as temporary, temporary.open("wb") as file:
        yield ShardWriter(HashedFile(file), layout, schema, unit.path(suffix).name)
