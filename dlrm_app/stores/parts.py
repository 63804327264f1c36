"""Files of one folder that ranks on several machines write, each machine with a local side of its own.

The first rank's machine holds the folder and mirrors it. A rank on another machine sends its files itself, before the
first rank writes the mark that makes them whole; the mirror leaves them as they are until that mark is deleted.
"""

import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from dlrm_app.distributed.ranks import Ranks
from dlrm_app.errors import DataError, Problem
from dlrm_app.locks import held_lock
from dlrm_app.stores.local import rank_folder
from dlrm_app.stores.names import url_of
from dlrm_app.stores.objects import StoredFile, StoredFolder
from dlrm_app.text import listed

logger = logging.getLogger(__name__)

ELSEWHERE: set[Path] = set()
"""Local places of files that only the store, or other machines, have, for the mirror in this process."""
GONE: set[Path] = set()
"""Those of them whose folder was deleted: the mirror deletes them in the store."""
SECONDS_TO_SEND = 600.0
"""The longest that a file of another machine may be on its way."""
_MOST_PAUSE, _LOOK_SECONDS = 60.0, 0.02
_AT_ONCE = 16
"""Files, or parts of one, that are fetched at the same time."""
_MARK = "complete.json"
_TENSORS = re.compile(r"(.*/)?rank-\d+\.tensors")
Files = Mapping[str, tuple[int, str]]
"""Name → (bytes, checksum)."""
Send = Callable[[Iterable[str]], None]
"""Sends files by their names, in this order."""


def are_apart(folder: Path, ranks: Ranks) -> bool:
    """True if ``folder`` is kept in a store by ranks on several machines."""
    return ranks.local_world_size < ranks.world_size and url_of(folder) is not None


def is_apart(folder: Path, ranks: Ranks) -> bool:
    """True if this rank is on another machine than the first one, which mirrors ``folder``."""
    return are_apart(folder, ranks) and ranks.rank != ranks.local_rank


def send_parts(folder: Path, written: Path, names: Iterable[str], minutes: float) -> None:
    """Sends the files ``names`` in the folder ``written`` to the store, as those of ``folder``.

    Raises DataError once the store has failed for ``minutes``.
    """
    stored = _stored(folder)
    for name in names:
        _until_it_succeeds(partial(stored.put, name, written / name), stored, minutes)


@contextmanager
def sent_files(folder: Path, rank: int) -> Iterator[tuple[Path, Send]]:
    """Yields an empty folder of this ``rank``, and what sends files of it, by their names, as those of ``folder``.

    Raises DlrmError if another command on this machine works there.
    """
    url = _stored(folder).url
    with rank_folder(url, rank) as written:
        yield written, lambda names: send_parts(folder, written, names, SECONDS_TO_SEND / 60)


def withdraw_mark(folder: Path, name: str, minutes: float) -> None:
    """Deletes the mark of ``folder`` in the store, before files that it stands for are sent again; as ``send_parts``."""
    if (folder / name).is_file():
        stored = _stored(folder)
        _until_it_succeeds(partial(stored.delete, [name]), stored, minutes)


def bring_parts(folder: Path, files: Files, patience: float = 0.0) -> None:
    """Fetches those of the ``files`` that are not here, if ``folder`` is kept in a store, several at a time.

    Waits up to ``patience`` seconds for those that another machine is still sending. Raises DataError.
    """
    if url_of(folder) is None:
        return
    stored, deadline = _stored(folder), time.monotonic() + patience

    def bring(name: str) -> None:
        while not (folder / name).is_file():
            try:
                bring_file(stored, name, folder / name, files[name][1])
            except DataError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(1)

    missing = [name for name in files if not (folder / name).is_file()]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for _ in threads.map(bring, missing):
            pass


def bring_all(folder: Path) -> None:
    """Fetches what ranks on other machines have sent to ``folder``; the mirror leaves it as it is. Raises DataError."""
    files = {name: (file.bytes, file.checksum) for name, file in _stored(folder).list().items()}
    missing = {name: file for name, file in files.items() if not (folder / name).is_file()}
    note_left(folder, missing)
    bring_parts(folder, missing)


def await_parts(folder: Path, files: Files, patience: float) -> None:
    """Waits up to ``patience`` seconds until the store has the ``files``, with their sizes. Raises DataError."""
    stored, deadline = _stored(folder), time.monotonic() + patience
    while True:
        found = stored.list()
        wrong = [name for name, (size, _) in files.items() if name not in found or found[name].bytes != size]
        if not wrong:
            return
        if time.monotonic() >= deadline:
            rule, cure = f"lacks {listed(wrong)}, or has other sizes of it", "name another checkpoint"
            raise DataError(Problem(str(stored), rule, cure))
        time.sleep(1)


def bring_ranges(
    folder: Path, name: str, path: Path, size: int, parts: Mapping[int, tuple[int, str]]
) -> None:
    """Makes ``path`` a file of ``size`` bytes that has the ``parts``, begin → (end, checksum), of a file in a store.

    Raises DataError.
    """
    stored = _stored(folder)
    with path.open("wb") as file, ThreadPoolExecutor(_AT_ONCE) as threads:
        file.truncate(size)  # what is left out takes no room

        def bring(begin: int) -> None:
            end, digest = parts[begin]
            os.pwrite(file.fileno(), stored.get_part(name, begin, end, digest), begin)

        for _ in threads.map(bring, parts):
            pass


def bring_file(stored: StoredFolder, name: str, path: Path, digest: str) -> None:
    """Fetches an object to ``path``, once for all processes of this machine. Raises DataError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with held_lock(path.with_name(f".{path.name}.lock"), "", math.inf, _LOOK_SECONDS):
        if not path.is_file():
            stored.get(name, path, digest)


def tensors_in(_source: StoredFolder, stored: Mapping[str, StoredFile]) -> dict[str, StoredFile]:
    """Those of the ``stored`` files that hold the tensors of whole checkpoints; they come when they are read."""
    marked = {name.removesuffix(_MARK) for name in stored if name.rpartition("/")[2] == _MARK}
    return {
        name: file
        for name, file in stored.items()
        if (match := _TENSORS.fullmatch(name)) and (match[1] or "") in marked
    }


def note_left(folder: Path, names: Iterable[str]) -> None:
    """Lets the mirror leave the files ``names`` below ``folder``, which stay in the store until they are read."""
    ELSEWHERE.update(_absolute(folder) / name for name in names)


def note_elsewhere(folder: Path, names: Iterable[str], here: Iterable[str] = ()) -> None:
    """Lets the mirror leave the files ``names`` of ``folder`` to the machines that have sent them.

    ``here``: the files that this machine has written. Others of an earlier save are deleted in the store.
    """
    places, own = ({_absolute(folder) / name for name in each} for each in (names, here))
    earlier = _elsewhere_in(folder) - places
    ELSEWHERE.update(places)  # first: the mirror looks at any moment
    ELSEWHERE.difference_update(earlier)
    GONE.difference_update(places | own)
    GONE.update(earlier - own)


def note_deleted(folder: Path) -> None:
    """Lets the mirror delete the files of ``folder`` that other machines have sent."""
    places = _elsewhere_in(folder)
    GONE.update(places)
    ELSEWHERE.difference_update(places)


def _elsewhere_in(folder: Path) -> set[Path]:
    return {place for place in ELSEWHERE if place.parent == _absolute(folder)}


def _absolute(folder: Path) -> Path:
    return Path(os.path.normpath(folder.absolute()))


def _until_it_succeeds(act: Callable[[], object], stored: StoredFolder, minutes: float) -> None:
    """Calls ``act`` again, after growing pauses, while the store fails, for up to ``minutes``."""
    pause, deadline = 1.0, time.monotonic() + 60 * minutes
    while True:
        try:
            act()
            return
        except DataError as error:
            if (left := deadline - time.monotonic()) <= 0:
                rule = f"could not be written for {minutes:g} minutes (trainer.timeout_minutes of a training)"
                cure = "start the same command again once the store answers; a training with resume=auto"
                raise DataError(Problem(str(stored), rule, cure), *error.problems) from error
            pause = min(2 * pause, _MOST_PAUSE, left)
            logger.warning("the store failed, trying again in %.0f s: %s", pause, error)
            time.sleep(pause)


def _stored(folder: Path) -> StoredFolder:
    url = url_of(folder)
    assert url is not None, f"{folder} is in no store"
    return StoredFolder(url)
