"""One command at a time works on a folder in a store: an object names it, and is renewed while it works.

The object is made, renewed and taken over by conditional requests, so two machines cannot both succeed. A command that
was killed renews it no more; the next one takes it over 30 s later, by its own clock, or at once on the same machine.
"""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex

from dlrm_app.errors import DataError, DlrmError, Problem
from dlrm_app.records import from_json
from dlrm_app.stores.names import cache_folder
from dlrm_app.stores.objects import LEASE, StoredFolder
from dlrm_app.text import json_text

logger = logging.getLogger(__name__)

RENEWED_SECONDS, KEPT_SECONDS = 10.0, 30.0
"""A lease is renewed after so many seconds, and ends after so many without being renewed."""
_LOOK_SECONDS = 2.0


@dataclass(frozen=True)
class Holder:
    """The process that works on a folder.

    ``place``: the machine and its folder of local sides; ``turn``: differs each time that the lease is renewed.
    """

    host: str
    process: int
    place: str
    turn: str

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"


def this_process() -> Holder:
    """This process, in a new turn."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    machine = boot.read_text().strip() if boot.is_file() else ""
    host = socket.gethostname()
    return Holder(host, os.getpid(), f"{host} {machine} {cache_folder()}", token_hex(8))


class Lease:
    """The lease of ``folder``. ``check`` raises DlrmError once another command has taken it over."""

    def __init__(self, folder: StoredFolder) -> None:
        self._folder = folder
        self._tag: str | None = None
        self._is_lost = False

    def acquire(self) -> None:
        """Takes the lease; waits for a holder that may have been killed.

        Raises DlrmError if another command works there, DataError if nothing can be written there.
        """
        began, seen, is_told = time.monotonic(), None, False
        while True:
            mine = _encoded(this_process())
            if (tag := self._folder.create(LEASE, mine)) is not None:
                break
            if (found := self._folder.read(LEASE)) is None:
                continue
            data, version = found
            holder = _holder(data)
            if seen not in (None, version):
                rule, cure = f"is worked on by {holder}", "wait for it, end it, or choose another folder"
                raise DlrmError(Problem(f"output={self._folder}", rule, cure))
            seen = version
            is_over = time.monotonic() - began >= KEPT_SECONDS
            if (is_over or holder.place == this_process().place) and (
                tag := self._folder.replace(LEASE, mine, version)
            ) is not None:
                break
            if not is_told:
                is_told = True
                text = "%s was worked on by %s: waiting %.0f s for a sign of it"
                logger.info(text, self._folder, holder, KEPT_SECONDS)
            time.sleep(_LOOK_SECONDS)
        self._tag = tag

    def renew(self) -> None:
        """Renews the lease. A store that does not answer is left for the next time."""
        if self._tag is None or self._is_lost:
            return
        with suppress(DataError):
            mine = _encoded(this_process())
            tag = self._folder.replace(LEASE, mine, self._tag)
            if tag is None and (found := self._folder.read(LEASE)) is not None and found[0] == mine:
                tag = found[1]  # the answer to a first try had been lost
            self._is_lost, self._tag = tag is None, tag

    def check(self) -> None:
        """Raises DlrmError if another command has taken the lease over."""
        if self._is_lost:
            rule = "has been taken over by another command, as this one had not reached the store"
            raise DlrmError(Problem(f"output={self._folder}", rule, "let that one work, or end it"))

    def release(self) -> None:
        if self._tag is not None and not self._is_lost:
            with suppress(DataError):
                self._folder.delete([LEASE])


@contextmanager
def held_lease(folder: StoredFolder) -> Iterator[Callable[[], None]]:
    """Holds the lease of ``folder`` while the block runs; yields a function that raises DlrmError once it is lost."""
    lease = Lease(folder)
    lease.acquire()
    is_over = threading.Event()

    def renew() -> None:
        while not is_over.wait(RENEWED_SECONDS):
            lease.renew()

    thread = threading.Thread(target=renew, name="lease", daemon=True)
    thread.start()
    try:
        yield lease.check
    finally:
        is_over.set()
        thread.join()
        lease.release()


def _encoded(holder: Holder) -> bytes:
    return json_text(asdict(holder)).encode()


def _holder(data: bytes) -> Holder:
    with suppress(ValueError):
        return from_json(Holder, json.loads(data))
    return Holder("an unknown machine", 0, "", "")
