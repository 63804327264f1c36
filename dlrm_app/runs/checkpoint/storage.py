"""torch.distributed.checkpoint's files with the index as JSON: a checkpoint holds tensors and text, no pickles.

torch writes the index (the file and place of each tensor) with pickle, and unpickling a file from another
person can run any code. The tensors themselves are read with ``weights_only``.
"""

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from dlrm_app.distributed.collectives import while_others_wait
from dlrm_app.errors import DataError
from dlrm_app.files import escapes, write_json

INDEX = "index.json"


class TensorWriter(FileSystemWriter):
    """Writes every rank's tensors into files of their own and, last, index.json."""

    def __init__(self, path: Path, group: dist.ProcessGroup | None) -> None:
        # one thread: torch drops errors of a second one (a full disk), and the checkpoint would lack its tensors;
        # no copies ahead from a GPU: torch would lock host memory for them, in powers of two, for the run's life
        super().__init__(
            path, single_file_per_rank=True, sync_files=True, overwrite=True, per_thread_copy_ahead=0
        )
        self._group = group

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's files. The other ranks wait without a timeout."""
        return while_others_wait(lambda: super(TensorWriter, self).write_data(plan, planner), self._group)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Writes index.json; torch calls this on the first rank once all have written."""
        tensors = {}
        for name, entry in metadata.state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):
                raise TypeError(f"{name} is no tensor: only tensors belong in a checkpoint's files")
            tensors[name] = {
                "dtype": str(entry.properties.dtype).removeprefix("torch."),
                "size": list(entry.size),
                "chunks": [[list(chunk.offsets), list(chunk.sizes)] for chunk in entry.chunks],
            }
        locations = [
            [
                result.index.fqn,
                None if result.index.offset is None else list(result.index.offset),
                result.index.index,
                result.storage_data.relative_path,
                result.storage_data.offset,
                result.storage_data.length,
            ]
            for rank_results in results
            for result in rank_results
        ]
        write_json(Path(self.path) / INDEX, {"tensors": tensors, "places": locations})


class TensorReader(FileSystemReader):
    """Reads what TensorWriter wrote."""

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads this rank's part. The other ranks wait without a timeout."""
        return while_others_wait(lambda: super(TensorReader, self).read_data(plan, planner))

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Reads the index. Raises DataError if the file is not an index."""
        path = Path(self.path) / INDEX
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            tensors: dict[str, STORAGE_TYPES] = {
                name: _tensor_metadata(entry) for name, entry in value["tensors"].items()
            }
            locations = {
                MetadataIndex(name, offset, number): _StorageInfo(_file_name(file), start, length)
                for name, offset, number, file, start, length in value["places"]
            }
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} is no index of a checkpoint: {error}; take it from a copy, or name another checkpoint"
            ) from error
        return Metadata(tensors, storage_data=locations, storage_meta=StorageMeta(load_id=self.load_id))


def _tensor_metadata(entry: dict[str, Any]) -> TensorStorageMetadata:
    dtype = getattr(torch, entry["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{entry['dtype']!r} is no tensor type")
    chunks = [
        ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in entry["chunks"]
    ]
    return TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(entry["size"]), chunks)


def _file_name(name: str) -> str:
    if escapes(name):
        raise ValueError(f"{name!r} is outside the checkpoint's folder")
    return name
