"""Sends what a command does in a local folder to the store, in an order that leaves no half work that looks whole.

A thread looks through the folder every second, whichever process writes there. What it finds is sent in this order:

1. marks that were written again are deleted in the store, because the files that they stand for may follow
2. data; a file that was renamed is copied within the store
3. new marks: records of journals, then files that make a folder whole, the deepest first
4. files that are gone are deleted, marks first
5. the marks of step 1

A file goes up once it has not changed for a second; one that grows goes up again only with a mark, or at the end.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from dlrm_app.errors import DataError, DlrmError, Problem
from dlrm_app.stores.appearing import SENDING, folders_on_their_way, has_arrived
from dlrm_app.stores.fetch import KeptFolder, Leave, fetch_files, leave_nothing
from dlrm_app.stores.local import (
    FileState,
    RememberedFile,
    files_in,
    going_up,
    in_order,
    is_mark,
    read_known,
    write_known,
)
from dlrm_app.stores.objects import StoredFile, file_checksum
from dlrm_app.stores.parts import ELSEWHERE, GONE

logger = logging.getLogger(__name__)

_AT_ONCE = 4
"""Files that are sent at the same time."""
_CALM_SECONDS = 1.0
_MOST_PAUSE = 60.0
"""The longest pause, in seconds, after the store has failed."""


class Mirror:
    """Sends the files of ``kept``, which this process holds, to the store.

    ``check``: called before anything is changed there; raises DlrmError if this command must not.
    """

    def __init__(self, kept: KeptFolder, check: Callable[[], None] = lambda: None) -> None:
        self._check = check
        self._stored, self._folder = kept.stored, kept.folder
        self._known = read_known(kept.folder)
        self._lock = threading.Lock()
        self._turn = threading.RLock()
        """Held while files are sent or fetched, so that none is sent back."""
        self._notes: set[str] = set()
        """Objects that say of folders that they are on their way."""
        self._again: set[str] = set()
        """Marks of step 1 that are not in the store yet."""

    def send(self, *, is_last: bool = False) -> None:
        """Sends what has changed. ``is_last``: nothing writes any more, so growing files are sent too.

        Raises DataError if the store fails; the next call continues.
        """
        with self._turn:
            self._send_changes(is_last=is_last)

    def fetch(self, is_wanted: Callable[[str], bool]) -> list[str]:
        """Fetches files that only the store has, as other machines have sent them, and that are wanted.

        Returns the names of those that stay in the store. Raises DataError.
        """
        with self._turn:
            missing = [name for name in self._stored.list() if not os.path.lexists(self._folder / name)]
            wanted = [name for name in missing if is_wanted(name)]
            if wanted:
                fetch_files(self._stored, self._folder, self._known, wanted)
            return [name for name in missing if not is_wanted(name)]

    def _send_changes(self, *, is_last: bool) -> None:
        marks = {name: state for name, state in files_in(self._folder) if is_mark(name)}
        # marks first: all that they stand for was there when they were listed
        now = {name: state for name, state in files_in(self._folder) if self._folder / name not in ELSEWHERE}
        if not self._folder.exists():
            return
        self._leave_to_others()
        gone = [name for name in self._known if name not in now and self._folder / name not in ELSEWHERE]
        changed = self._changed(now)
        changed = [name for name in changed if not is_mark(name) or marks.get(name) == now[name]]
        if not (is_last or gone or any(map(is_mark, changed))):
            changed = [name for name in changed if name not in self._known and _is_calm(now[name])]
        if not (changed or gone or self._gone_elsewhere()):
            return
        self._check()
        try:
            self._send(now, changed, gone)
        finally:
            write_known(self._folder, self._known)

    def _send(self, now: Mapping[str, FileState], changed: list[str], gone: list[str]) -> None:
        for folder in folders_on_their_way(self._folder, changed, self._known):
            self._notes.add(note := f"{folder}{SENDING}")
            self._stored.write(note, b"1")  # a store may take an object without bytes for a folder
        again = [name for name in changed if is_mark(name) and name in self._known]
        self._again |= {*again}
        self._delete(again)
        write_known(self._folder, going_up(self._known, {name: now[name] for name in changed}))
        sources = {self._known[name].state: name for name in self._known.keys() - {*changed}}
        with ThreadPoolExecutor(_AT_ONCE) as threads:

            def send(names: Iterable[str]) -> None:
                for group in in_order(names):
                    for _ in threads.map(lambda name: self._send_one(name, now[name], sources), group):
                        pass

            send(name for name in changed if name not in self._again)
            self._delete(name for name in gone if is_mark(name))
            self._delete(name for name in gone if not is_mark(name))
            self._delete_of_others()
            send(name for name in changed if name in self._again)
        if arrived := {note for note in self._notes if has_arrived(note, self._known)}:
            self._stored.delete(arrived)
            self._notes -= arrived

    def end(self) -> None:
        """Sends the rest; if the folder itself is gone, deletes what the store has of it. Raises DlrmError."""
        if self._folder.exists():
            self.send(is_last=True)
        else:
            self._check()
            for names in reversed(in_order(self._stored.list())):  # those that other machines have sent too
                self._delete(names)
            write_known(self._folder, self._known)

    def _leave_to_others(self) -> None:
        """Forgets the files that ranks on other machines have written again, and not those that were left in the store."""
        for name, file in [*self._known.items()]:
            if self._folder / name in ELSEWHERE and not file.is_coming:
                del self._known[name]

    def _gone_elsewhere(self) -> set[Path]:
        """The files that other machines have sent to folders that are deleted."""
        return {place for place in GONE if self._folder in place.parents}

    def _delete_of_others(self) -> None:
        if places := self._gone_elsewhere():
            self._stored.delete([place.relative_to(self._folder).as_posix() for place in places])
            GONE.difference_update(places)

    def _changed(self, now: Mapping[str, FileState]) -> list[str]:
        """The files with other bytes than the store has. Files that were written again as they were are noted."""
        found = []
        for name, state in now.items():
            known = self._known.get(name)
            if known is None or (known.state != state and not self._is_equal(name, state, known)):
                found.append(name)
            elif known.state != state:
                self._known[name] = RememberedFile.of(
                    state, StoredFile(state.bytes, known.tag, known.checksum)
                )
        return found

    def _is_equal(self, name: str, state: FileState, known: RememberedFile) -> bool:
        """True if a file that was written again has the same bytes as before."""
        with suppress(FileNotFoundError):  # deleted meanwhile
            return known.bytes == state.bytes and known.checksum == file_checksum(self._folder / name)
        return False

    def _send_one(self, name: str, state: FileState, sources: Mapping[FileState, str]) -> None:
        """Sends a file, or copies the object that has its bytes. A file that is gone by now is left out."""
        source = sources.get(state)
        try:
            stored = None if source is None else self._copy(source, name)
            stored = stored or self._stored.put(name, self._folder / name)
        except (FileNotFoundError, DataError):
            if os.path.lexists(self._folder / name):
                raise
            return
        with self._lock:
            self._known[name] = RememberedFile.of(state, stored)
            self._again.discard(name)

    def _copy(self, source: str, name: str) -> StoredFile | None:
        """The copy; None if the store cannot make it, as S3 of objects over 5 GB."""
        with suppress(DataError):
            return self._stored.copy(source, name, self._known[source].checksum)
        return None

    def _delete(self, names: Iterable[str]) -> None:
        if names := [*names]:
            self._stored.delete(names)
            with self._lock:
                for name in names:
                    self._known.pop(name, None)


def _is_calm(state: FileState) -> bool:
    return time.time() - state.modified_ns / 1e9 > _CALM_SECONDS


@contextmanager
def kept_folder(
    kept: KeptFolder, parts: KeptFolder | None = None, leave: Leave = leave_nothing
) -> Iterator[Mirror]:
    """Works on a folder or file while the block runs: fetches it, holds it, sends all changes.

    ``parts``: a folder beside it with finished parts, which the block deletes once the whole is there; then it goes
    from the store too. ``leave``: as in ``fetched_for_work``. Raises DlrmError if another command works on it, or if
    the store fails.
    """
    with kept.fetched_for_work(leave) as check:
        if parts is not None:
            parts.fetch()
        mirrors = [Mirror(each, check) for each in (kept, parts) if each is not None]
        try:
            with sending(*mirrors):
                yield mirrors[0]
        except BaseException:
            try:
                for mirror in mirrors:
                    mirror.send(is_last=True)
            except DlrmError as error:
                logger.warning("%s is not all in the store: %s", kept.stored, error)
            raise
        try:
            mirrors[0].send(is_last=True)
            for mirror in mirrors[1:]:
                mirror.end()
        except DlrmError as error:
            rule = "is complete on this machine, and not in the store"
            problem = Problem(f"output={kept.stored}", rule, "run the same command again: it sends the rest")
            raise DlrmError(problem, *error.problems) from error


@contextmanager
def sending(*mirrors: Mirror) -> Iterator[None]:
    """Sends changes every second while the block runs."""
    is_over = threading.Event()
    sender = threading.Thread(target=_send_on, args=(mirrors, is_over.wait), name="store", daemon=True)
    sender.start()
    try:
        yield
    finally:
        is_over.set()
        sender.join()


def _send_on(mirrors: Sequence[Mirror], wait: Callable[[float], bool]) -> None:
    """Sends changes until ``wait`` returns True; after a failure, with growing pauses."""
    pause = 1.0
    while not wait(pause):
        try:
            for mirror in mirrors:
                mirror.send()
            pause = 1.0
        except DlrmError as error:
            pause = min(2 * pause, _MOST_PAUSE)
            logger.warning("the store failed, trying again in %.0f s: %s", pause, error)
