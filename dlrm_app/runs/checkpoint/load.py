"""Opening a checkpoint and loading its tensors, on all ranks together."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from dlrm_app.distributed.collectives import while_others_wait
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import DataError, DlrmError
from dlrm_app.runs.checkpoint.marker import MARKER, Marker, read_marker, verify_files
from dlrm_app.runs.checkpoint.state import Tensors
from dlrm_app.runs.checkpoint.storage import TensorReader
from dlrm_app.text import bullets


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint, whose files were verified."""

    folder: Path
    marker: Marker


def open_checkpoint(folder: Path, runtime: Runtime) -> Checkpoint:
    """The checkpoint at ``folder`` once all its files are verified, the work shared among the ranks.

    Raises DataError (on every rank) if it is incomplete or damaged.
    """
    marker = runtime.together(lambda: read_marker(folder))
    names = sorted(marker.files)[runtime.rank :: runtime.world_size]
    files = {name: marker.files[name] for name in names}
    runtime.together(
        lambda: while_others_wait(lambda: _unless_deleted(folder, lambda: verify_files(folder, files)))
    )
    return Checkpoint(folder, marker)


def load_tensors(folder: Path, tensors: Tensors) -> None:
    """Fills ``tensors`` in place from ``folder``, whatever plan and number of ranks wrote it.

    Raises DataError naming every tensor that it lacks or holds in another size.
    """
    _unless_deleted(folder, lambda: _load(folder, tensors))


def _unless_deleted(folder: Path, work: Callable[[], None]) -> None:
    """Does ``work``; raises DataError if that fails because the run, which still trains, has deleted ``folder``."""
    try:
        work()
    except (DlrmError, OSError, CheckpointException) as error:
        if (folder / MARKER).is_file():
            raise
        raise DataError(
            f"checkpoint {folder} was deleted while it was read: its run still trains and keeps only the newest and "
            "the best. Type the command again, or train with a larger checkpoint.keep_last"
        ) from error


def _load(folder: Path, tensors: Tensors) -> None:
    reader = TensorReader(folder)
    stored = reader.read_metadata().state_dict_metadata
    problems = []
    for name, tensor in tensors.items():
        entry = stored.get(name)
        if not isinstance(entry, TensorStorageMetadata):
            problems.append(f"{name} is not in it")
        elif entry.size != tensor.size():
            problems.append(
                f"{name} has size {tuple(entry.size)} in it, the model wants {tuple(tensor.size())}"
            )
    if problems:
        raise DataError(
            f"checkpoint {folder} is of another model or optimizer: give the settings that it was "
            f"saved with (config.yaml has them), or start a new run\n{bullets(problems, 8)}"
        )
    load(tensors, storage_reader=reader)
