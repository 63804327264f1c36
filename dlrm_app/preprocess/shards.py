"""Row groups → a Parquet shard under its final name, checksum included."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dlrm_app.files import written_whole

_SAMPLE = 4096
_REPEATS = 8
"""A dictionary pays where, in a sample, a value occurs so many times on average."""


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


class ShardWriter:
    """Writes tables of one schema as row groups."""

    def __init__(self, file: HashedFile, layout: ShardLayout) -> None:
        self._file = file
        self._layout = layout
        self._writer: Any = None
        self.row_groups: list[int] = []

    def write(self, table: pa.Table) -> None:
        """Adds ``table`` as one row group, or as several if it has more rows than a row group may have."""
        if self._writer is None and len(table):
            settings = _settings(table, self._layout)
            self._writer = pq.ParquetWriter(
                self._file,
                table.schema,
                write_statistics=False,
                store_schema=False,
                write_page_checksum=True,  # readers then find a flipped bit themselves
                **settings,
            )
        for start in range(0, len(table), self._layout.row_group_rows):
            part = table.slice(start, self._layout.row_group_rows)
            self._writer.write_table(part, row_group_size=len(part))
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


def _settings(table: pa.Table, layout: ShardLayout) -> dict[str, Any]:
    """Dictionaries for columns whose first rows repeat values; bytes apart for the others (BYTE_STREAM_SPLIT)."""
    repeating, spread = [], {}
    for name, kind in zip(table.schema.names, table.schema.types, strict=True):
        is_list = pa.types.is_list(kind)
        values = table.column(name)
        sample = (pc.list_flatten(values) if is_list else values).slice(0, _SAMPLE)
        path = f"{name}.list.element" if is_list else name
        if sample.type == pa.uint8() or pc.count_distinct(sample).as_py() * _REPEATS <= len(sample):
            repeating.append(path)
        else:
            spread[path] = "BYTE_STREAM_SPLIT"
    return {
        "compression": layout.compression,
        "compression_level": layout.compression_level if layout.compression == "zstd" else None,
        "use_dictionary": repeating,
        "column_encoding": spread,
    }


@contextmanager
def open_shard(path: Path, layout: ShardLayout) -> Iterator[ShardWriter]:
    """A shard that gets its name only if the block ends well; call ``finish`` in it."""
    with written_whole(path) as temporary, temporary.open("wb") as file:
        yield ShardWriter(HashedFile(file), layout)
