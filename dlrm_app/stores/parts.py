"""Files of one folder that ranks on several machines write, each machine with a local side of its own.

The first rank's machine holds the folder and mirrors it. A rank on another machine sends its files itself, before the
first rank writes the mark that makes them whole; the mirror leaves them as they are until that mark is deleted.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from dlrm_app.distributed.ranks import Ranks
from dlrm_app.errors import DataError
from dlrm_app.locks import held_lock
from dlrm_app.stores.names import url_of
from dlrm_app.stores.objects import StoredFolder

logger = logging.getLogger(__name__)

ELSEWHERE: set[Path] = set()
"""Local places of files that are only in the store and on other machines, for the mirror in this process."""
SECONDS_TO_SEND = 600.0
"""The longest that a file of another machine may be on its way."""
_MOST_PAUSE, _LOOK_SECONDS = 60.0, 0.02


def are_apart(folder: Path, ranks: Ranks) -> bool:
    """True if ``folder`` is kept in a store by ranks on several machines."""
    return ranks.local_world_size < ranks.world_size and url_of(folder) is not None


def is_apart(folder: Path, ranks: Ranks) -> bool:
    """True if this rank is on another machine than the first one, which mirrors ``folder``."""
    return are_apart(folder, ranks) and ranks.rank != ranks.local_rank


def send_parts(folder: Path, written: Path, names: Iterable[str]) -> None:
    """Sends the files ``names`` in the folder ``written`` to the store, as those of ``folder``."""
    stored = _stored(folder)
    for name in names:
        _until_it_succeeds(partial(stored.put, name, written / name))


def withdraw_mark(folder: Path, name: str) -> None:
    """Deletes the mark of ``folder`` in the store, before files that it stands for are sent again."""
    if (folder / name).is_file():
        _until_it_succeeds(partial(_stored(folder).delete, [name]))


def bring_parts(folder: Path, files: Mapping[str, tuple[int, str]], patience: float = 0.0) -> None:
    """Fetches those of the ``files``, name → (bytes, checksum), that are not here, if ``folder`` is kept in a store.

    Waits up to ``patience`` seconds for those that another machine is still sending. Raises DataError.
    """
    if url_of(folder) is None:
        return
    stored, deadline = _stored(folder), time.monotonic() + patience
    for name, (_, digest) in files.items():
        while not (folder / name).is_file():
            try:
                bring_file(stored, name, folder / name, digest)
            except DataError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(1)


def bring_file(stored: StoredFolder, name: str, path: Path, digest: str) -> None:
    """Fetches an object to ``path``, once for all processes of this machine. Raises DataError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with held_lock(path.with_name(f".{path.name}.lock"), "", math.inf, _LOOK_SECONDS):
        if not path.is_file():
            stored.get(name, path, digest)


def note_elsewhere(folder: Path, names: Iterable[str]) -> None:
    """Lets the mirror leave the files ``names`` of ``folder`` to the machines that have sent them."""
    ELSEWHERE.update(Path(os.path.normpath(folder.absolute())) / name for name in names)


def _until_it_succeeds(act: Callable[[], object]) -> None:
    """Calls ``act`` again, after growing pauses, while the store fails."""
    pause = 1.0
    while True:
        try:
            act()
            return
        except DataError as error:
            pause = min(2 * pause, _MOST_PAUSE)
            logger.warning("the store failed, trying again in %.0f s: %s", pause, error)
            time.sleep(pause)


def _stored(folder: Path) -> StoredFolder:
    url = url_of(folder)
    assert url is not None, f"{folder} is in no store"
    return StoredFolder(url)
