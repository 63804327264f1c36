"""A part of the rows to score: the piece that a process takes, and that is not scored again once it is written."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dlrm_app.dataset.arrow import array_of
from dlrm_app.dataset.manifest import Manifest, Shard
from dlrm_app.dataset.shard_files import ShardReader, verify_shards
from dlrm_app.errors import DataError
from dlrm_app.loader.reader import TableReader
from dlrm_app.preprocess.read.parser import RejectedLine

NUMBER, KEPT = "number", "keep:"
"""The column that says where a row stands within its part (its line or row, from 0 on); what columns that go along begin with."""
Chunk = tuple[pa.Table, pa.Table]
"""Encoded rows, with the columns of a dataset, and what goes along with their scores: the number, columns of the input."""


MAX_REJECTS = 5
"""Lines left out of a part whose reasons are kept."""


@dataclass
class Tally:
    """The content of a part: ``num_lines``, or rows, of the file or shard ``origin``, whose first has number ``first_number``.

    ``num_rejects`` lines are left out, the first of them with their line within the part and the reason.
    """

    origin: str
    first_number: int
    num_lines: int = 0
    num_rejects: int = 0
    rejects: list[tuple[int, str]] = field(default_factory=list)

    def leave_out(self, rejects: Sequence[RejectedLine]) -> None:
        """Adds lines left out."""
        self.num_rejects += len(rejects)
        room = MAX_REJECTS - len(self.rejects)
        self.rejects += [(reject.line, reject.reason) for reject in rejects[:room]]


class Part(NamedTuple):
    """A part, whose ``name`` sorts as the rows do; ``read`` gives the chunks and fills the tally."""

    name: str
    tally: Tally
    read: Callable[[Tally], Iterator[Chunk]]


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
                    yield Part(name, Tally(shard.path, 0, rows), partial(self._read, shard, group))
                number += 1

    def _read(self, shard: Shard, group: int, _: Tally) -> Iterator[Chunk]:
        table = self._reader.read(shard, group)
        yield table, pa.table({NUMBER: array_of(np.arange(len(table)))})
