"""The parts of a dataset's split: its row groups."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dlrm_app.dataset.manifest import Manifest, Shard
from dlrm_app.dataset.shard_files import row_group_difference, verify_shards
from dlrm_app.errors import DataError
from dlrm_app.inference.predict.part import Chunk, Part, TableReader


class DatasetParts:
    """``split`` of a dataset, read by ``reader``. Raises DataError where the split or a file of it is missing."""

    def __init__(self, manifest: Manifest, split: str, reader: TableReader) -> None:
        if split not in manifest.splits:
            raise DataError(
                f"{manifest.path} has no {split} split, only {', '.join(manifest.splits)}: give split="
            )
        verify_shards(manifest)
        self._folder = manifest.folder
        self._shards = manifest.splits[split].shards
        self.has_labels = manifest.label is not None and manifest.splits[split].positives is not None
        self._columns = reader.columns(self.has_labels)
        self.identity = {"dataset": manifest.fingerprint(), "split": split}
        self.origin_names = ("shard", "row")
        self.first_number = 0

    def parts(self, is_wanted: Callable[[str, int], bool]) -> Iterator[Part]:
        """Those for which ``is_wanted(name, number)``."""
        number = 0
        for index, shard in enumerate(self._shards):
            for group, rows in enumerate(shard.row_groups):
                name = f"{index:05d}-{group:07d}"
                if is_wanted(name, number):
                    yield Part(name, shard.path, self._read(shard, group), num_lines=rows)
                number += 1

    def _read(self, shard: Shard, group: int) -> Iterator[Chunk]:
        path: Path = self._folder / shard.path
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                if difference := row_group_difference(file.metadata, path, shard):
                    raise DataError(f"{difference}: preprocess again")
                table = file.read_row_group(group, columns=self._columns)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} cannot be read ({error}): copy it again, or preprocess again") from error
        yield table, np.arange(len(table))
