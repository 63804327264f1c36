"""Checks shard files against the manifest, and reads their row groups and the mean numbers of ids of a row."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dlrm_app.checksums import differences, file_difference
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.dataset.shard_sources import bring, source_of
from dlrm_app.dataset.splits import Shard
from dlrm_app.errors import DataError, Problem
from dlrm_app.text import listed

SUGGESTION = "copy the files again from an intact dataset, or preprocess again"


def verify_shards(manifest: Manifest, *, checksums: bool = False, part: int = 0, num_parts: int = 1) -> None:
    """Compares every shard with the manifest: its size, and with ``checksums`` its content.

    ``part``: compares only the shards of this part of ``num_parts``. Raises DataError naming every shard that is
    missing or differs. Shards that are brought later are compared then.
    """
    folder, shards_of_part = manifest.folder, list(manifest.shards)[part::num_parts]
    if source := source_of(folder):
        shards_of_part = [s for s in shards_of_part if not source.has(s) or (folder / s.path).is_file()]
    shards = {s.path: (s.bytes, s.checksum if checksums else None) for s in shards_of_part}
    if problems := differences(folder, shards):
        raise DataError(Problem(str(folder), "is damaged", SUGGESTION), *problems)


def row_group_difference(metadata: pq.FileMetaData, path: Path, shard: Shard) -> Problem | None:
    """The difference between the row groups of the file at ``path`` and those of the manifest, if there is one."""
    row_groups = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    if row_groups == shard.row_groups:
        return None
    given, known = (
        f"{len(rows):,} row groups of {listed(rows)} rows" for rows in (row_groups, shard.row_groups)
    )
    return Problem(str(path), f"holds {given}, the manifest says {known}")


FOOTERS = 256
"""The number of footers that a reader keeps.

A footer takes about 800 bytes for each column of each row group, so all footers of a large split would take gigabytes
on every rank.
"""


class ShardReader:
    """Reads ``columns`` of row groups of the shards in ``folder``, in any number of threads."""

    def __init__(self, folder: Path, columns: Sequence[str]) -> None:
        self._folder = folder
        self._columns = columns
        self.source = source_of(folder)
        self._footer = lru_cache(maxsize=FOOTERS)(self._read_footer)

    def read(self, shard: Shard, index: int) -> pa.Table:
        """Reads row group number ``index``.

        Raises DataError, naming the file, if it is missing, damaged or another file.
        """
        path = self._folder / shard.path
        if self.source:
            self.source.bring(shard)
        try:
            footer = self._footer(shard)
            with pq.ParquetFile(path, metadata=footer, page_checksum_verification=True) as file:
                # row groups are decoded in parallel, each by one thread: the number of Arrow's own threads would be
                # OMP_NUM_THREADS, which is 1 under torchrun
                return file.read_row_group(index, columns=self._columns, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            if difference := file_difference(path, shard.bytes, shard.checksum):
                raise DataError(replace(difference, cure=SUGGESTION)) from error
            rule = f"cannot be decoded, though its checksum is right ({error})"
            raise DataError(Problem(str(path), rule, "preprocess again")) from error

    def _read_footer(self, shard: Shard) -> pq.FileMetaData:
        path = self._folder / shard.path
        footer = pq.read_metadata(path)
        if difference := row_group_difference(footer, path, shard):
            raise DataError(replace(difference, cure="preprocess again"))
        return footer


def mean_ids(manifest: Manifest) -> dict[str, float]:
    """Multi-hot feature → ids a row, to two significant digits, from the footer of one shard.

    An empty row counts as one id if the file does not count empty rows. Empty for a manifest without its
    shards. Raises DataError for a shard that is not Parquet.
    """
    wanted = {column.name for column in manifest.sparse if column.multi_hot}
    shards = [shard for shard in manifest.shards if shard.rows]
    if not wanted or not shards or manifest.path is None:
        return {}
    path = bring(manifest.path, shards[0])
    if not path.is_file():
        return {}
    try:
        footer = pq.read_metadata(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(Problem(str(path), f"cannot be read ({error})", "preprocess again")) from error
    counts = dict.fromkeys(wanted, 0)
    for group in range(footer.num_row_groups):
        for index in range(footer.num_columns):
            chunk = footer.row_group(group).column(index)
            name = chunk.path_in_schema.split(".")[0]
            if name in wanted:
                has_nulls = chunk.statistics is not None and chunk.statistics.has_null_count
                counts[name] += chunk.num_values - (chunk.statistics.null_count if has_nulls else 0)
    return {name: max(float(f"{count / footer.num_rows:.2g}"), 0.01) for name, count in counts.items()}
