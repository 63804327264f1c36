"""Checkpoints of ranks on machines that share a store and no disk."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from dlrm_app.distributed.collectives import all_gather_objects, broadcast_from_first, while_others_wait
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.runs.checkpoint.marker import MARKER, read_marker
from dlrm_app.stores.parts import (
    SECONDS_TO_SEND,
    are_apart,
    bring_parts,
    is_apart,
    note_elsewhere,
    send_parts,
    withdraw_mark,
)

Files = Mapping[str, tuple[int, str]]
"""Name → (bytes, checksum)."""


def gather_files(folder: Path, partial: Path, written: Files, ranks: Runtime) -> dict[str, tuple[int, str]]:
    """The files that all ranks have ``written`` to ``partial``, for the checkpoint ``folder``.

    A rank on another machine than the first sends its own to the store before this returns.
    """
    apart = is_apart(folder, ranks)
    if are_apart(folder, ranks):
        ranks.on_first(withdraw_mark, folder, MARKER)
        own = written if apart else {}
        ranks.together(while_others_wait, lambda: send_parts(folder, partial, own), ranks.group)
    by_rank = all_gather_objects((written, apart), ranks.group)
    note_elsewhere(folder, [name for files, is_sent in by_rank if is_sent for name in files])
    return {name: entry for files, _ in by_rank for name, entry in files.items()}


def first_whole(folders: Sequence[Path], runtime: Runtime) -> Path | None:
    """The first of ``folders`` that is a whole checkpoint on the first rank's machine, brought to this one; None if none is."""
    found = next((number for number, folder in enumerate(folders) if (folder / MARKER).is_file()), None)
    if (number := broadcast_from_first(found)) is None:
        return None
    folder = folders[number]
    files = runtime.on_first(lambda: read_marker(folder).files)
    runtime.together(while_others_wait, lambda: bring_parts(folder, files, SECONDS_TO_SEND))
    return folder
