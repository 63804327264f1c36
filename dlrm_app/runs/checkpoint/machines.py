"""Checkpoints of ranks on machines that share a store and no disk."""

from collections.abc import Sequence
from pathlib import Path

from dlrm_app.distributed.collectives import all_gather_objects, broadcast_from_first, while_others_wait
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.records import Json
from dlrm_app.runs.checkpoint.marker import MARKER, read_marker
from dlrm_app.runs.checkpoint.ranges import parts_name
from dlrm_app.stores.parts import (
    SECONDS_TO_SEND,
    Files,
    are_apart,
    await_parts,
    bring_parts,
    is_apart,
    note_elsewhere,
    send_parts,
    withdraw_mark,
)


def gather_files(
    folder: Path, partial: Path, written: Files, ranks: Runtime, config: Json
) -> dict[str, tuple[int, str]]:
    """The files that all ranks have ``written`` to ``partial``, for the checkpoint ``folder`` of the run with
    ``config``.

    A rank on another machine than the first sends its own to the store before this returns. Raises DataError, on every
    rank, once the store has failed for trainer.timeout_minutes.
    """
    apart = is_apart(folder, ranks)
    if are_apart(folder, ranks):
        minutes, own = config["trainer"]["timeout_minutes"], written if apart else {}
        ranks.on_first(withdraw_mark, folder, MARKER, minutes)
        ranks.together(while_others_wait, lambda: send_parts(folder, partial, own, minutes), ranks.group)
    by_rank = all_gather_objects((written, apart), ranks.group)
    sent, here = (
        [name for files, is_sent in by_rank if is_sent == value for name in files] for value in (True, False)
    )
    note_elsewhere(folder, sent, here)
    return {name: entry for files, _ in by_rank for name, entry in files.items()}


def first_whole(folders: Sequence[Path], runtime: Runtime) -> Path | None:
    """The first of ``folders`` that is a whole checkpoint on the first rank's machine, brought to this one; None if
    none is.
    """
    found = next((number for number, folder in enumerate(folders) if (folder / MARKER).is_file()), None)
    if (number := broadcast_from_first(found)) is None:
        return None
    folder = folders[number]
    files = runtime.on_first(lambda: read_marker(folder).files)
    runtime.together(while_others_wait, lambda: bring_files(folder, files, runtime, SECONDS_TO_SEND))
    return folder


def bring_files(folder: Path, files: Files, runtime: Runtime, patience: float = 0.0) -> list[str]:
    """Fetches the ``files`` of a checkpoint that are not here, if a store has it; returns those of this rank to verify.

    Where the ranks are on several machines, no machine needs all tensors: they stay in the store, and ranks read ranges
    (ranges.py). ``patience``: seconds to wait for files that another machine is still sending. Raises DataError.
    """
    if not are_apart(folder, runtime):
        bring_parts(folder, files, patience)
        return sorted(files)[runtime.rank :: runtime.world_size]
    left = {
        name: file
        for name, file in files.items()
        if parts_name(name) in files and not (folder / name).is_file()
    }
    bring_parts(folder, {name: file for name, file in files.items() if name not in left}, patience)
    if left:
        await_parts(folder, left, patience)
    return sorted(files.keys() - left)[runtime.local_rank :: runtime.local_world_size]
