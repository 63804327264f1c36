"""Sources of shards that are not on this disk yet; they come to the dataset's folder when they are read."""

import os
from pathlib import Path
from typing import Protocol

from dlrm_app.dataset.splits import Shard


class ShardSource(Protocol):
    """Brings the shards of a dataset to its folder."""

    def has(self, shard: Shard) -> bool:
        """True for a shard that it can bring; its size has been compared with the manifest."""

    def bring(self, shard: Shard) -> None:
        """Returns once the file is there, whose checksum was compared. Raises DataError."""


SOURCES: dict[str, ShardSource] = {}
"""The real path of a dataset's folder → the source of its shards, if they are not all there."""


def source_of(folder: Path) -> ShardSource | None:
    return SOURCES.get(os.path.realpath(folder)) if SOURCES else None


def bring(folder: Path, shard: Shard) -> Path:
    """The path of a shard in ``folder``; returns once the file is there, if it can be brought. Raises DataError."""
    if source := source_of(folder):
        source.bring(shard)
    return folder / shard.path
