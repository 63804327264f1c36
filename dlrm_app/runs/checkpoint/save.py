"""Saving a checkpoint, on all ranks together."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save

from dlrm_app.distributed.collectives import all_gather_objects, while_others_wait
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import DataError, SharedError
from dlrm_app.files import describe_files
from dlrm_app.runs.checkpoint.format import complete, make_partial, partial_path, remove_partial, resume_hint
from dlrm_app.runs.checkpoint.marker import Marker
from dlrm_app.runs.checkpoint.pieces import Pieces, PiecesPlanner, not_finite
from dlrm_app.runs.checkpoint.state import Tensors
from dlrm_app.runs.checkpoint.storage import INDEX, TensorWriter
from dlrm_app.text import listed

T = TypeVar("T")


def save_checkpoint(
    folder: Path,
    tensors: Tensors,
    pieces: Pieces,
    marker: Marker,
    runtime: Runtime,
    group: dist.ProcessGroup | None,
) -> None:
    """Writes ``tensors`` of all ranks and the first rank's ``marker`` as ``folder``.

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
            storage_writer=TensorWriter(partial, group),
            planner=PiecesPlanner(pieces),
            process_group=group,
        )
        names = sorted(path.name for path in partial.glob(f"__{runtime.rank}_*"))
        names += [INDEX] if runtime.is_first else []
        described = together(lambda: while_others_wait(lambda: describe_files(partial, names), group))
        by_rank = all_gather_objects(described, group)
        files = {name: entry for by_name in by_rank for name, entry in by_name.items()}
        together(lambda: complete(folder, replace(marker, files=files)) if runtime.is_first else None)
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
            f"rates or set optimizer.dense.clip_norm; {resume_hint(folder.parent)}"
        )


def _or_refuse(folder: Path, work: Callable[[], T]) -> T:
    try:
        return work()
    except OSError as error:
        raise DataError(f"checkpoint {folder} could not be written: {error}{_room(folder)}") from error


def _room(folder: Path) -> str:
    """What torch does not tell of a full disk."""
    disk = next(parent for parent in folder.absolute().parents if parent.is_dir())
    free = shutil.disk_usage(disk).free / 2**30
    return f"\n  {free:,.1f} GiB are free there; make room, then: {resume_hint(folder.parent)}"
