"""Checkpoint folders: written under a hidden name, complete only once complete.json says what they must hold.

RUN/checkpoints/step-000001000/__0_0.distcp …  index.json  complete.json
"""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

from dlrm_app.errors import DataError
from dlrm_app.files import checksum, sync_folder, write_json

MARKER = "complete.json"
FORMAT = "dlrm-checkpoint"
VERSION = 1
NAME = re.compile(r"step-(\d{9,})$")


def checkpoint_name(step: int) -> str:
    """``step-000001000`` for 1000."""
    return f"step-{step:09d}"


def partial_path(folder: Path) -> Path:
    """Where a checkpoint is written before it is complete."""
    return folder.with_name(f".{folder.name}.partial")


def make_partial(folder: Path) -> None:
    """An empty place to write ``folder`` to, without what an interrupted saving left there."""
    remove_partial(folder)
    partial_path(folder).mkdir(parents=True)


def remove_partial(folder: Path) -> None:
    """Deletes what was written of ``folder``, if it did not become complete."""
    shutil.rmtree(partial_path(folder), ignore_errors=True)


def complete(folder: Path, files: dict[str, list[Any]], content: dict[str, Any]) -> None:
    """Marks the partial folder of ``folder`` as complete and gives it its name.

    ``files``: name → [bytes, checksum] of every file in it; ``content``: what the marker tells besides.
    """
    partial = partial_path(folder)
    write_json(partial / MARKER, {"format": FORMAT, "version": VERSION, "files": files, **content})
    replaced = folder.with_name(f".{folder.name}.replaced")
    if folder.exists():  # the same step saved again, say with its evaluation
        folder.rename(replaced)
    partial.rename(folder)
    sync_folder(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def list_checkpoints(parent: Path) -> list[Path]:
    """Folders of complete checkpoints in ``parent``, the newest step first."""
    if not parent.is_dir():
        return []
    found = [path for path in parent.iterdir() if NAME.match(path.name) and (path / MARKER).is_file()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def describe_files(folder: Path, names: list[str]) -> dict[str, list[Any]]:
    """Name → [bytes, checksum] as they are on disk now."""
    return {name: [(folder / name).stat().st_size, checksum(folder / name)] for name in names}


def read_marker(folder: Path) -> dict[str, Any]:
    """What complete.json tells. Raises DataError if the folder is no complete checkpoint."""
    path = folder / MARKER
    if not folder.is_dir():
        raise DataError(f"no checkpoint at {folder}: the folder does not exist")
    if not path.is_file():
        raise DataError(
            f"{folder} is no complete checkpoint: it has no {MARKER} (its saving was interrupted)"
        )
    try:
        marker = json.loads(path.read_text(encoding="utf-8"))
        found = (marker["format"], marker["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged: {error}") from error
    if found != (FORMAT, VERSION):
        raise DataError(
            f"{path} is {found[0]!r} version {found[1]!r}, this program reads {FORMAT!r} version {VERSION}"
        )
    return marker


def val_auc(marker: dict[str, Any]) -> float | None:
    """The AUC on val of a checkpoint's weights, if they were evaluated before they were saved."""
    progress = marker["progress"]
    scores = [e["auc"] for e in progress["evals"] if e["split"] == "val" and e["step"] == progress["step"]]
    return scores[-1] if scores and not math.isnan(scores[-1]) else None


def best_checkpoint(parent: Path) -> Path | None:
    """The complete checkpoint in ``parent`` with the highest AUC on val, of equals the newest; None if none has one."""
    scores = {
        path: score for path in list_checkpoints(parent) if (score := val_auc(read_marker(path))) is not None
    }
    return max(scores, key=lambda path: scores[path], default=None)


def verify_files(folder: Path, files: dict[str, list[Any]]) -> None:
    """Compares files with what the marker says of them. Raises DataError naming every one that differs."""
    problems = []
    for name, (num_bytes, digest) in files.items():
        path = folder / name
        if Path(name).name != name:
            problems.append(f"{name!r} leads out of the folder")
        elif not path.is_file():
            problems.append(f"{name} is missing")
        elif path.stat().st_size != num_bytes:
            problems.append(f"{name} has {path.stat().st_size:,} bytes, not {num_bytes:,}")
        elif checksum(path) != digest:
            problems.append(f"{name} has other bytes than were written (checksum)")
    if problems:
        raise DataError(
            "\n".join([f"checkpoint {folder} is damaged:", *(f"  - {problem}" for problem in problems)])
        )


def remove_all_but(parent: Path, keep: set[Path]) -> None:
    """Deletes every checkpoint of ``parent`` that is not in ``keep``, and what interrupted savings left."""
    for path in list_checkpoints(parent):
        if path not in keep:
            (path / MARKER).unlink()  # first, so that a half-deleted folder is no checkpoint
            shutil.rmtree(path)
    for pattern in (".step-*.partial", ".step-*.replaced"):
        for path in parent.glob(pattern):
            shutil.rmtree(path)
