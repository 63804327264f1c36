"""Row groups → a Parquet shard under its final name, checksum included."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from dlrm_app.files import written_whole


@dataclass(frozen=True)
class ShardLayout:
    """How shards are written; see docs/preprocessing.md for the measurements behind the defaults."""

    row_group_rows: int
    compression: str
    compression_level: int | None


class ShardWriter:
    """Writes tables of one schema as row groups."""

    def __init__(self, file: "_HashedFile", schema: pa.Schema, layout: ShardLayout) -> None:
        self._file = file
        self._rows = layout.row_group_rows
        self._writer = pq.ParquetWriter(
            file,
            schema,
            compression=layout.compression,
            compression_level=layout.compression_level if layout.compression == "zstd" else None,
            write_statistics=False,
            store_schema=False,
            write_page_checksum=True,  # readers then find a flipped bit themselves
        )
        self.row_groups: list[int] = []

    def write(self, table: pa.Table) -> None:
        """Adds ``table`` as one row group, or as several if it has more rows than a row group may have."""
        for start in range(0, len(table), self._rows):
            part = table.slice(start, self._rows)
            self._writer.write_table(part, row_group_size=self._rows)
            self.row_groups.append(len(part))

    def finish(self) -> dict[str, Any]:
        """What the manifest says of the shard."""
        self._writer.close()
        return {
            "rows": sum(self.row_groups),
            "bytes": self._file.size,
            "checksum": f"sha256:{self._file.digest.hexdigest()}",
            "row_groups": self.row_groups,
        }


@dataclass
class _HashedFile:
    """A file to write, its size and checksum so far."""

    file: BinaryIO
    size: int = 0
    digest: Any = field(default_factory=hashlib.sha256)
    closed: bool = False

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self.size += len(data)
        return self.file.write(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        self.closed = True


@contextmanager
def open_shard(path: Path, schema: pa.Schema, layout: ShardLayout) -> Iterator[ShardWriter]:
    """A shard that gets its name only if the block ends well; call ``finish`` in it."""
    with written_whole(path) as temporary, temporary.open("wb") as file:
        yield ShardWriter(_HashedFile(file), schema, layout)
