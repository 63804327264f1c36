"""Checkpoint folders. Each is written under a hidden name and complete only once its complete.json exists.

RUN/checkpoints/step-000001000/rank-00000.tensors …  index.json  complete.json
"""

import re
import shutil
from pathlib import Path

from dlrm_app.dataset.manifest import MANIFEST
from dlrm_app.errors import DataError, Problem
from dlrm_app.files import sync_folder
from dlrm_app.locks import SharedLock, shared_lock, unlink_unlocked
from dlrm_app.runs.checkpoint.marker import MARKER, Marker, read_marker, write_marker
from dlrm_app.stores.parts import ELSEWHERE, note_deleted

REPLACED = ".replaced"
NAME = re.compile(r"step-(\d{9,})$")
_CHOICES = 20
"""The most times that a checkpoint is chosen again because its run has deleted it meanwhile."""


def checkpoints_of(run: Path) -> Path:
    """The folder of a run's checkpoints."""
    return run / "checkpoints"


def checkpoint_name(step: int) -> str:
    """``step-000001000`` for 1000."""
    return f"step-{step:09d}"


def checkpoint_step(folder: Path) -> int:
    """1000 for ``step-000001000``."""
    return int(folder.name.removeprefix("step-"))


def partial_path(folder: Path) -> Path:
    """The folder that a checkpoint is written to before it is complete."""
    return folder.with_name(f".{folder.name}.partial")


def make_partial(folder: Path) -> None:
    """Makes an empty folder to write ``folder`` to; deletes the rest of an interrupted save."""
    remove_partial(folder)
    partial_path(folder).mkdir(parents=True)


def remove_partial(folder: Path) -> None:
    """Deletes the partial folder of ``folder``, if there is one."""
    shutil.rmtree(partial_path(folder), ignore_errors=True)


def complete(folder: Path, marker: Marker) -> None:
    """Marks the partial folder of ``folder`` as complete and gives it its name."""
    partial = partial_path(folder)
    write_marker(partial, marker)
    sync_folder(partial)  # the names of the other ranks' files, too
    replaced = folder.with_name(f".{folder.name}{REPLACED}")
    if folder.exists():  # the same step is saved again, for example with its evaluation
        folder.rename(replaced)
    partial.rename(folder)
    sync_folder(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def restore_replaced(parent: Path) -> None:
    """Renames back the checkpoints whose replacement was interrupted between its two renames."""
    for path in parent.glob(f".step-*{REPLACED}"):
        folder = path.with_name(path.name.removeprefix(".").removesuffix(REPLACED))
        if not folder.exists():
            path.rename(folder)


def list_checkpoints(parent: Path) -> list[Path]:
    """Folders of complete checkpoints in ``parent``, the newest step first."""
    if not parent.is_dir():
        return []
    found: list[Path] = []
    for _ in range(_CHOICES):
        named = [path for path in parent.iterdir() if NAME.match(path.name)]
        found = [path for path in named if (path / MARKER).is_file()]
        if found or not named:
            break  # else a run may have saved another one and deleted these since they were listed
    return sorted(found, key=checkpoint_step, reverse=True)


def resume_hint(parent: Path) -> str:
    """The hint printed after a failure: how to resume, if there is a checkpoint."""
    newest = list_checkpoints(parent)[:1]
    return (
        f"resume=auto continues from {newest[0].name}"
        if newest
        else "there is no checkpoint yet: resume=auto starts again"
    )


def choose_checkpoint(path: Path, which: str) -> Path:
    """The newest checkpoint of a run folder or, with ``which="best"``, the best on val.

    Any other folder is returned as it is.

    Raises DataError if no checkpoint was evaluated.
    """
    newest = list_checkpoints(checkpoints_of(path))
    if not newest or which == "newest":
        return newest[0] if newest else path
    if best := best_first(newest):
        return best[0]
    rule = "has no checkpoint that was evaluated on val, so none is the best"
    raise DataError(Problem(str(path), rule, "use which=newest"))


def hold_checkpoint(path: Path, which: str) -> tuple[Path, SharedLock | None]:
    """``choose_checkpoint``, and a lock: while it is held, no run deletes the checkpoint.

    None if there is no checkpoint.

    A run that is training may delete the chosen one before it is held; then another one is chosen.
    """
    for _ in range(_CHOICES):
        try:
            folder = choose_checkpoint(path, which)
        except DataError:
            if not list_checkpoints(checkpoints_of(path)):
                raise
            continue  # one was deleted while they were compared
        if (held := shared_lock(folder / MARKER)) is not None or folder == path:
            return folder, held
    return choose_checkpoint(path, which), None


def refuse_no_checkpoint(path: Path) -> None:
    """Raises DataError unless ``path`` is a checkpoint or a run folder with checkpoints."""
    if not list_checkpoints(checkpoints_of(path)):
        read_marker(path)


def best_first(checkpoints: list[Path]) -> list[Path]:
    """The ``checkpoints`` that were evaluated on val, the best first. ``checkpoints``: the newest first, whose metric
    (evaluation.best) decides.
    """
    markers = {path: read_marker(path) for path in checkpoints}
    metric = next((marker.progress.best for marker in markers.values()), "")
    found = {path: marker.val_merit(metric) for path, marker in markers.items()}
    merits = {path: merit for path, merit in found.items() if merit is not None}
    return sorted(merits, key=lambda path: merits[path], reverse=True)


def looks_whole(folder: Path) -> bool:
    """True if a checkpoint's marker is readable and its files have their sizes; checksums are not computed.

    Files that other machines have sent to the store are not looked at.
    """
    try:
        sizes = {folder / name: num_bytes for name, (num_bytes, _) in read_marker(folder).files.items()}
        return all(path in ELSEWHERE or path.stat().st_size == size for path, size in sizes.items())
    except (DataError, OSError):
        return False


def remove_old(parent: Path, keep_last: int, keep_best: int) -> None:
    """Deletes all checkpoints of ``parent`` except the newest and the best on val.

    Damaged ones are kept and not counted; those without a marker are deleted.

    One that is being read (``hold_checkpoint``) is deleted by a later call.
    """
    whole = [path for path in list_checkpoints(parent) if looks_whole(path)]
    keep = {*whole[:keep_last], *best_first(whole)[:keep_best]}
    for path in whole:
        # the marker first, so that a half-deleted folder is not a checkpoint
        if path not in keep and unlink_unlocked(path / MARKER):
            shutil.rmtree(path)
            note_deleted(path)
    for path in parent.iterdir():  # half deleted, or half sent to a store, when a process was killed
        if NAME.match(path.name) and path.is_dir() and not (path / MARKER).exists():
            shutil.rmtree(path)
    for pattern in (".step-*.partial", f".step-*{REPLACED}"):  # left by interrupted saves
        for path in parent.glob(pattern):
            shutil.rmtree(path)


def other_run_problems(path: Path, resume: str) -> list[Problem]:
    """Problems of ``output=path`` for a run with ``resume``."""
    if (path / MANIFEST).exists():
        return [Problem(f"output={path}", "is a dataset", f"choose another folder, such as {path}_run")]
    holds_run = (path / "config.yaml").exists() or bool(list_checkpoints(checkpoints_of(path)))
    if not holds_run or _continues(path, resume):
        return []
    cure = "add resume=auto to continue it, or choose another folder"
    return [Problem(f"output={path}", "already holds a run", cure)]


def _continues(path: Path, resume: str) -> bool:
    """True if ``resume`` names the run in ``path``, or a checkpoint of it."""
    named = Path(resume).resolve()
    return resume == "auto" or (resume != "none" and path.resolve() in (named, *named.parents[1:2]))


def can_continue(resume: str, output: str | None) -> bool:
    """True if a run continues from a checkpoint, so that it does not need the one that it began with."""
    if resume == "auto":
        return bool(list_checkpoints(checkpoints_of(Path(output or ""))))
    return resume != "none"
