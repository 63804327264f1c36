"""Shards of a dataset in a store come to the local side when they are read, or ahead of that.

The manifest and all other files are fetched before the work, so a training begins at once, on however many shards; a
rank brings those that it reads. Ranks of a machine have one local side, where each shard comes once.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from dlrm_app.dataset.manifest import MANIFEST, read_manifest
from dlrm_app.dataset.shard_sources import SOURCES
from dlrm_app.dataset.splits import Shard
from dlrm_app.errors import DataError
from dlrm_app.files import escapes
from dlrm_app.stores.objects import StoredFile, StoredFolder
from dlrm_app.stores.parts import bring_file


@dataclass(frozen=True)
class StoredShards:
    """Brings the shards ``names`` of the dataset ``stored`` to ``folder``."""

    stored: StoredFolder
    folder: Path
    names: frozenset[str]

    def has(self, shard: Shard) -> bool:
        return shard.path in self.names

    def bring(self, shard: Shard) -> None:
        path = self.folder / shard.path
        if path.is_file() or not self.has(shard):
            return
        bring_file(self.stored, shard.path, path, shard.checksum)


def shards_in(source: StoredFolder, stored: Mapping[str, StoredFile]) -> dict[str, StoredFile]:
    """Those of the ``stored`` files that are shards of a dataset, with their checksums, if ``source`` is a dataset.

    Only shards of the size that the manifest says: others are fetched, and named, as any file.
    """
    if MANIFEST not in stored:
        return {}
    with suppress(DataError), TemporaryDirectory() as temporary:  # a damaged one is explained by who reads it
        source.get(MANIFEST, Path(temporary) / MANIFEST)
        shards = read_manifest(Path(temporary)).shards
        return {
            shard.path: replace(stored[shard.path], checksum=shard.checksum)
            for shard in shards
            if shard.path in stored and stored[shard.path].bytes == shard.bytes and not escapes(shard.path)
        }
    return {}


def bring_later(source: StoredFolder, folder: Path, left: Mapping[str, StoredFile]) -> None:
    """Lets readers of the dataset in ``folder`` bring the shards ``left``."""
    if left:
        SOURCES[os.path.realpath(folder)] = StoredShards(source, folder, frozenset(left))
