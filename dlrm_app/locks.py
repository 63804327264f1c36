"""Locks of files and outputs, which a killed process releases too."""

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from dlrm_app.errors import DlrmError, refuse_if
from dlrm_app.files import output_problems

logger = logging.getLogger(__name__)


_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Errors of file systems without locks: Lustre mounted without flock, NFS without a lock daemon, some of FUSE."""


@contextmanager
def held_lock(
    path: Path, refusal: str, wait_seconds: float = 0.0, look_seconds: float = 1.0
) -> Iterator[None]:
    """Holds the lock file ``path`` while the block runs. The lock of a killed process is released too.

    Raises DlrmError with ``refusal`` if another process still holds it after ``wait_seconds``, in which it is tried
    every ``look_seconds``. Where the file
    system has no locks, the block runs without one, with a warning.
    """
    deadline = time.monotonic() + wait_seconds
    while (file := _open_locked(path, "w", fcntl.LOCK_EX)) is None:
        if time.monotonic() >= deadline:
            raise DlrmError(refusal)
        time.sleep(look_seconds)
    with file:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


class SharedLock:
    """A locked file, which ``unlink_unlocked`` leaves until nothing holds this object."""

    _descriptor: int | None = None

    def __init__(self, file: IO[Any]) -> None:
        # a descriptor, because Python warns of file objects that are collected while they are open
        self._descriptor = os.dup(file.fileno())
        file.close()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.close()


def shared_lock(path: Path) -> SharedLock | None:
    """Opens and locks ``path``, so that ``unlink_unlocked`` of other processes leaves it. None if it is gone."""
    try:
        file = _open_locked(path, "rb", fcntl.LOCK_SH)
    except FileNotFoundError:
        return None
    return None if file is None else SharedLock(file)


def unlink_unlocked(path: Path) -> bool:
    """Deletes ``path`` and returns True, unless a process holds its ``shared_lock``."""
    if (file := _open_locked(path, "r+b", fcntl.LOCK_EX)) is None:
        return False
    with file:
        path.unlink()
    return True


def _open_locked(path: Path, mode: str, kind: int) -> IO[Any] | None:
    """Opens and locks ``path``; None if another process holds it, or has deleted it since it was opened.

    Where the file system has no locks, the file is only opened, with a warning if it is opened to be written.
    """
    file = path.open(mode)
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
        is_ours = os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        is_ours = False
    except OSError as error:
        is_ours = error.errno in _NO_LOCKS
        if not is_ours:
            file.close()
            raise
        if mode == "w":
            warning = "%s has no locks (%s): nothing keeps two commands from writing there at the same time"
            logger.warning(warning, path.parent, error.strerror)
    if is_ours:
        return file
    file.close()
    return None


@contextmanager
def held_output(output: Path, command: str, *, is_folder: bool = False) -> Iterator[None]:
    """Locks ``output`` while ``command`` makes it. Raises DlrmError if another process makes it, or if it exists."""
    output.parent.mkdir(parents=True, exist_ok=True)
    lock = output.with_name(f".{output.name}.lock")
    with held_lock(lock, f"another {command} makes output={output}: wait for it, or give another name"):
        refuse_if(output_problems("output", output, is_folder=is_folder, is_new=True))
        yield
