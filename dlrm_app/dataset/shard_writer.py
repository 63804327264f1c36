"""Writes the shards of a dataset."""

import hashlib
from typing import BinaryIO

import pyarrow as pa

from dlrm_app.dataset.dictionary import IndexedRows
from dlrm_app.dataset.parquet import ParquetWriter
from dlrm_app.dataset.splits import Shard


class ShardWriter(ParquetWriter):
    """Writes rows of ``schema`` as row groups to ``file``. ``name``: the path in the entry that ``finish`` returns."""

    def __init__(self, file: BinaryIO, row_group_rows: int, schema: pa.Schema, name: str = "") -> None:
        self._file, self._name = file, name
        self._digest = hashlib.sha256()
        self._row_group_rows = row_group_rows
        super().__init__(self._write, schema)

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        self._file.write(data)

    def write_table(self, table: pa.Table) -> None:
        """Adds ``table`` as row groups of ``row_group_rows`` rows."""
        for start in range(0, len(table), self._row_group_rows):
            self.write(IndexedRows.of(table.slice(start, self._row_group_rows)))

    def finish(self) -> Shard:
        """Returns the shard's entry in the manifest. A shard without rows is not part of the dataset."""
        self.close()
        return Shard(
            path=self._name,
            rows=sum(self.row_groups),
            bytes=self.num_bytes,
            checksum=f"sha256:{self._digest.hexdigest()}",
            row_groups=self.row_groups,
        )
