"""Saving a checkpoint and loading one, on all ranks together."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from dlrm_app.checkpoint.format import (
    complete,
    describe_files,
    make_partial,
    partial_path,
    read_marker,
    remove_partial,
    verify_files,
)
from dlrm_app.checkpoint.pieces import Pieces, PiecesPlanner, not_finite
from dlrm_app.checkpoint.state import Tensors
from dlrm_app.checkpoint.storage import INDEX, TensorReader, TensorWriter
from dlrm_app.display.text import first_lines, listed
from dlrm_app.distributed.collectives import all_gather_objects
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import DataError, SharedError

T = TypeVar("T")


def save_checkpoint(
    folder: Path,
    tensors: Tensors,
    pieces: Pieces,
    content: dict[str, Any],
    runtime: Runtime,
    group: dist.ProcessGroup | None,
) -> None:
    """Writes ``tensors`` of all ranks and, in its marker, ``content`` (of the first rank) as ``folder``.

    ``pieces``: the values of this rank, or copies of them. ``group``: all ranks, for the messages between them.
    A checkpoint appears under its name when every byte is on disk, or not at all. Raises SharedError, on every
    rank, if any cannot write or holds a value that is no finite number.
    """
    partial = partial_path(folder)

    def together(work: Callable[[], T]) -> T:
        return runtime.together(lambda: _or_refuse(folder, work), group)

    try:
        together(lambda: check_pieces(folder, pieces))
        together(lambda: make_partial(folder) if runtime.is_first else None)
        save(
            tensors,
            storage_writer=TensorWriter(partial),
            planner=PiecesPlanner(pieces),
            process_group=group,
        )
        own = sorted(path.name for path in partial.glob(f"__{runtime.rank}_*"))
        own += [INDEX] if runtime.is_first else []
        described = all_gather_objects(together(lambda: describe_files(partial, own)), group)
        files = {name: entry for part in described for name, entry in part.items()}
        together(lambda: complete(folder, files, content) if runtime.is_first else None)
    except CheckpointException as error:  # DCP's: raised on every rank
        reasons = "; ".join(f"rank {rank}: {reason[0]}" for rank, reason in error.failures.items())
        raise SharedError(f"checkpoint {folder} could not be written: {reasons}{_room(folder)}") from error
    finally:
        if runtime.is_first:
            remove_partial(folder)


def check_pieces(folder: Path, pieces: Pieces) -> None:
    """Raises DataError if a value is nan or inf: nothing could go on from there."""
    if bad := not_finite(pieces):
        raise DataError(
            f"{folder.name} is not saved, for what is not finite in it: {listed(bad)}. The weights diverged: lower the learning "
            "rates or set optimizer.dense.clip_norm; resume=auto goes on from the checkpoint before"
        )


def _or_refuse(folder: Path, work: Callable[[], T]) -> T:
    try:
        return work()
    except OSError as error:
        raise DataError(f"checkpoint {folder} could not be written: {error}{_room(folder)}") from error


def _room(folder: Path) -> str:
    """What torch does not tell of a full disk."""
    place = next(parent for parent in folder.absolute().parents if parent.is_dir())
    free = shutil.disk_usage(place).free / 2**30
    return f"\n  {free:,.1f} GiB are free there; once it can be written, resume=auto goes on from the checkpoint before"


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
            "\n".join(
                [
                    f"checkpoint {folder} is of another model or optimizer:",
                    *(f"  - {line}" for line in first_lines(problems, 8)),
                ]
            )
        )
    load(tensors, storage_reader=reader)


def random_state() -> str:
    """torch's CPU generator state, as text."""
    return torch.get_rng_state().numpy().tobytes().hex()


def set_random_state(text: str) -> None:
    """Restores what ``random_state`` gave."""
    torch.set_rng_state(torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8))
