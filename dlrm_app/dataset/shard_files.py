"""Are the files of shards as the manifest describes them."""

from pathlib import Path

import pyarrow.parquet as pq

from dlrm_app.dataset.manifest import Manifest, Shard
from dlrm_app.errors import DataError
from dlrm_app.files import checksum
from dlrm_app.text import bullets, listed

SUGGESTION = "copy the files again from where they are whole, or preprocess again"


def verify_shards(manifest: Manifest, *, checksums: bool = False) -> None:
    """Compares every shard with the manifest: its size, and with ``checksums`` its bytes.

    Raises DataError naming every shard that is missing or differs.
    """
    folder = manifest.folder
    all_shards = [file_difference(folder / shard.path, shard, checksums) for shard in manifest.shards]
    if differences := [difference for difference in all_shards if difference]:
        raise DataError(f"{folder} is damaged; {SUGGESTION}:\n{bullets(differences)}")


def file_difference(path: Path, shard: Shard, checksums: bool) -> str | None:
    """How the file at ``path`` differs in size, and with ``checksums`` in its bytes."""
    if not path.is_file():
        return f"{path} is missing"
    size = path.stat().st_size
    if size != shard.bytes:
        return f"{path} has {size:,} bytes, the manifest says {shard.bytes:,}"
    if checksums and (actual := checksum(path)) != shard.checksum:
        return f"{path} has checksum {actual}, the manifest says {shard.checksum}"
    return None


def row_group_difference(metadata: pq.FileMetaData, path: Path, shard: Shard) -> str | None:
    """How the row groups that the file at ``path`` says it holds differ."""
    row_groups = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    if row_groups == shard.row_groups:
        return None
    given, known = (
        f"{len(rows):,} row groups of {listed(rows)} rows" for rows in (row_groups, shard.row_groups)
    )
    return f"{path} holds {given}, the manifest says {known}"
