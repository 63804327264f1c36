"""Saving a checkpoint and loading one, on all ranks together."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from dlrm_app.errors import DataError
from dlrm_app.runtime import Runtime
from dlrm_app.training.checkpoint.folder import (
    complete,
    describe_files,
    partial_path,
    read_marker,
    verify_files,
)
from dlrm_app.training.checkpoint.state import Tensors
from dlrm_app.training.checkpoint.storage import INDEX, TensorReader, TensorWriter


def save_checkpoint(folder: Path, tensors: Tensors, content: dict[str, Any], runtime: Runtime) -> None:
    """Writes ``tensors`` of all ranks and, in its marker, ``content`` (of the first rank) as ``folder``.

    A checkpoint appears under its name when every byte is on disk, or not at all.
    """
    partial = partial_path(folder)
    if runtime.is_first:
        partial.mkdir(parents=True, exist_ok=True)
    if runtime.world_size > 1:
        dist.barrier()
    save(tensors, storage_writer=TensorWriter(partial))
    own = sorted(path.name for path in partial.glob(f"__{runtime.rank}_*"))
    if runtime.is_first:
        own.append(INDEX)
    described = _gather(describe_files(partial, own), runtime)
    if runtime.is_first:
        files = {name: entry for part in described for name, entry in part.items()}
        complete(folder, files, content)
    if runtime.world_size > 1:
        dist.barrier()


def open_checkpoint(folder: Path, runtime: Runtime) -> dict[str, Any]:
    """The marker of ``folder`` once all its files are verified, the work shared among the ranks.

    Raises DataError (on every rank) if it is incomplete or damaged.
    """
    marker = runtime.together(lambda: read_marker(folder))
    names = sorted(marker["files"])[runtime.rank :: runtime.world_size]
    runtime.together(lambda: verify_files(folder, {name: marker["files"][name] for name in names}))
    return marker


def load_tensors(folder: Path, tensors: Tensors) -> None:
    """Fills ``tensors`` in place from ``folder``, whatever plan and number of ranks wrote it.

    Raises DataError naming every tensor that it lacks or holds in another size.
    """
    reader = TensorReader(folder)
    stored = reader.read_metadata().state_dict_metadata
    problems = []
    for name, tensor in tensors.items():
        found = stored.get(name)
        if not isinstance(found, TensorStorageMetadata):
            problems.append(f"{name} is not in it")
        elif found.size != tensor.size():
            problems.append(
                f"{name} has size {tuple(found.size)} in it, the model wants {tuple(tensor.size())}"
            )
    if problems:
        raise DataError(
            "\n".join([f"checkpoint {folder} is of another model or optimizer:", *_first(problems)])
        )
    load(tensors, storage_reader=reader)


def _first(problems: Sequence[str], limit: int = 8) -> list[str]:
    more = [f"  … and {len(problems) - limit} more"] if len(problems) > limit else []
    return [*(f"  - {problem}" for problem in problems[:limit]), *more]


def _gather(value: Any, runtime: Runtime) -> list[Any]:
    values: list[Any] = [value]
    if runtime.world_size > 1:
        values = [None] * runtime.world_size
        dist.all_gather_object(values, value)
    return values


def random_state() -> str:
    """torch's CPU generator state, as text."""
    return torch.get_rng_state().numpy().tobytes().hex()


def set_random_state(text: str) -> None:
    """Restores what ``random_state`` gave."""
    torch.set_rng_state(torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8))
