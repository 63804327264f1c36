"""Row groups → a Parquet shard under its final name, checksum included."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from dlrm_app.files import written_whole
from dlrm_app.preprocess.parquet import ParquetWriter


@dataclass(frozen=True)
class ShardLayout:
    """How shards are written; see docs/preprocessing.md for the measurements behind the defaults."""

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
    """Writes tables of one schema as row groups."""

    def __init__(self, file: HashedFile, layout: ShardLayout) -> None:
        self._file = file
        self._layout = layout
        self._writer: ParquetWriter | None = None
        self.row_groups: list[int] = []

    def write(self, table: pa.Table) -> None:
        """Adds ``table`` as one row group, or as several if it has more rows than a row group may have."""
        layout = self._layout
        for start in range(0, len(table), layout.row_group_rows):
            if self._writer is None:
                self._writer = ParquetWriter(
                    self._file, table.schema, layout.compression, layout.compression_level
                )
            part = table.slice(start, layout.row_group_rows)
            self._writer.write_group(part)
            self.row_groups.append(len(part))

    def finish(self) -> dict[str, Any]:
        """What the manifest says of the shard. One without rows is an empty file, and stays out of the dataset."""
        if self._writer is not None:
            self._writer.close()
        return {
            "rows": sum(self.row_groups),
            "bytes": self._file.size,
            "checksum": f"sha256:{self._file.digest.hexdigest()}",
            "row_groups": self.row_groups,
        }


@contextmanager
def open_shard(path: Path, layout: ShardLayout) -> Iterator[ShardWriter]:
    """A shard that gets its name only if the block ends well; call ``finish`` in it."""
    with written_whole(path) as temporary, temporary.open("wb") as file:
        yield ShardWriter(HashedFile(file), layout)
