"""A part of the rows to score: the piece that a process takes, and that is not scored again once it is written."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from dlrm_app.dataset.arrow import array_of
from dlrm_app.dataset.manifest import Manifest, Shard
from dlrm_app.dataset.shard_files import ShardReader, verify_shards
from dlrm_app.errors import DataError
from dlrm_app.loader.reader import TableReader

NUMBER, KEPT = "number", "keep:"
"""The column that says where a row stands within its part (its line or row, from 0 on); what columns that go along begin with."""
Chunk = tuple[pa.Table, pa.Table]
"""Encoded rows, with the columns of a dataset, and what goes along with their scores: the number, columns of the input."""


@dataclass
class Part:
    """``name`` sorts as the rows do. ``origin``: the file or shard, whose first line or row has number ``first_number``.

    ``num_lines`` and ``rejects`` (line within the part, reason) are filled by ``read``, which gives the chunks.
    """

    name: str
    origin: str
    read: "ReadPart"
    first_number: int
    num_lines: int = 0
    rejects: list[tuple[int, str]] = field(default_factory=list)


ReadPart = Callable[[Part], Iterator[Chunk]]


class DatasetParts:
    """``split`` of a dataset, read by ``reader``. Raises DataError where the split or a file of it is missing."""

    def __init__(self, manifest: Manifest, split: str, reader: TableReader) -> None:
        if split not in manifest.splits:
            raise DataError(
                f"{manifest.path} has no {split} split, only {', '.join(manifest.splits)}: give split="
            )
        verify_shards(manifest)
        self._shards = manifest.splits[split].shards
        has_labels = manifest.label is not None and manifest.splits[split].positives is not None
        self._reader = ShardReader(manifest.folder, reader.columns(has_labels))
        self.identity = {"dataset": manifest.fingerprint(), "split": split}
        self.origin_names = ("shard", "row")

    def parts(self, is_wanted: Callable[[str, int], bool]) -> Iterator[Part]:
        """Gives the parts for which ``is_wanted(name, number)``."""
        number = 0
        for index, shard in enumerate(self._shards):
            for group, rows in enumerate(shard.row_groups):
                name = f"{index:05d}-{group:07d}"
                if is_wanted(name, number):
                    yield Part(name, shard.path, partial(self._read, shard, group), 0, num_lines=rows)
                number += 1

    def _read(self, shard: Shard, group: int, _: Part) -> Iterator[Chunk]:
        table = self._reader.read(shard, group)
        yield table, pa.table({NUMBER: array_of(np.arange(len(table)))})
