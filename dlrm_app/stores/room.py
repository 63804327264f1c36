"""Keeps the local sides of stores within DLRM_STORE_GIB: deletes the folders that were used longest ago.

A folder that a living process has used, or that has files which are not in its store, stays.
"""

import atexit
import logging
import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from dlrm_app.errors import ConfigError, DlrmError, Problem
from dlrm_app.locks import SharedLock, shared_lock, unlink_unlocked
from dlrm_app.stores.local import arrived, beside, fetching, files_in, marks_of_use, read_known, working
from dlrm_app.stores.names import cache_folder, named
from dlrm_app.text import bytes_text

logger = logging.getLogger(__name__)

ROOM = "DLRM_STORE_GIB"
"""The variable with the most GiB of all local sides; without it there is no limit."""
HELD: dict[Path, SharedLock] = {}
"""The folders that this process has used."""
atexit.register(HELD.clear)  # while the modules that closing needs are there


def hold(folder: Path) -> None:
    """Notes that ``folder`` is used now; until this process ends it is not deleted."""
    path = beside(folder, "used")
    place = os.fsencode(folder.relative_to(cache_folder()))
    while True:
        path.write_bytes(place)  # its date is that of the last use
        if (lock := HELD.get(folder) or shared_lock(path)) is not None:  # else it was deleted meanwhile
            HELD[folder] = lock
            return


def release(folder: Path) -> None:
    """Lets ``folder``, which this process does not use any more, be deleted."""
    for held in [held for held in HELD if held.resolve() == folder.resolve()]:
        HELD.pop(held).close()


def most_bytes() -> float:
    """The most bytes of all local sides. Raises ConfigError."""
    given = os.environ.get(ROOM, "inf")
    try:
        limit = float(given)
    except ValueError:
        limit = math.nan
    if not limit > 0:
        raise ConfigError(Problem(ROOM, "must be a number of GiB, above 0", "give one, or unset it", given))
    return limit * 2**30


def make_room(coming: int = 0) -> None:
    """Deletes the folders that were used longest ago until the others fit. Raises ConfigError.

    ``coming``: the bytes of shards that will be brought.
    """
    if (limit := most_bytes()) == math.inf:
        return
    marks = sorted(marks_of_use(), key=lambda path: path.stat().st_mtime_ns)
    folders = [cache_folder() / os.fsdecode(mark.read_bytes()) for mark in marks]
    sizes = {folder: sum(state.bytes for _, state in files_in(folder)) for folder in folders}
    # a folder within another one is counted there
    total = coming + sum(
        size for folder, size in sizes.items() if not any(other in folder.parents for other in folders)
    )
    for folder in folders:
        if total <= limit:
            return
        within = [other for other in folders if folder in other.parents]
        is_within = any(other in folder.parents for other in folders)
        if not is_within and _delete(folder, within):
            total -= sizes[folder]
            size = bytes_text(sizes[folder])
            logger.info(
                "%s=%g: deleted the local files of %s (%s)", ROOM, limit / 2**30, named(str(folder)), size
            )
    if total > limit:
        size = bytes_text(total)
        logger.warning("%s=%g: what is used, or not sent yet, takes %s", ROOM, limit / 2**30, size)


def _delete(folder: Path, within: Sequence[Path]) -> bool:
    """Deletes ``folder`` and returns True, unless it, or one of the folders ``within``, must stay."""
    try:
        with fetching(folder), working(folder):
            local = dict(files_in(folder))
            known = arrived(read_known(folder), local)
            if any(name not in known or known[name].state != state for name, state in local.items()):
                return False
            for each in (*within, folder):
                if beside(each, "used").exists() and not unlink_unlocked(beside(each, "used")):
                    return False
            # what is remembered goes first: files without it are fetched again
            beside(folder, "json").unlink(missing_ok=True)
            if folder.is_dir():
                shutil.rmtree(folder)
            else:
                folder.unlink(missing_ok=True)
            return True
    except DlrmError:  # a command works there
        return False
