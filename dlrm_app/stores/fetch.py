"""Brings the local side of a folder up to date with its store."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dlrm_app.dataset.manifest import MANIFEST
from dlrm_app.errors import DlrmError
from dlrm_app.stores.appearing import cut_off, has_arrived, notes_in
from dlrm_app.stores.lease import held_lease
from dlrm_app.stores.local import (
    JOURNALS_OF_WORK,
    FileState,
    Known,
    RememberedFile,
    arrived,
    beside,
    fetching,
    files_in,
    in_order,
    is_mark,
    read_known,
    state_of,
    working,
    write_known,
)
from dlrm_app.stores.names import cache_folder, is_in_store, local_place, url_of
from dlrm_app.stores.objects import StoredFile, StoredFolder
from dlrm_app.stores.parts import note_left, tensors_in
from dlrm_app.stores.room import hold, make_room
from dlrm_app.stores.shards import bring_later, shards_in
from dlrm_app.text import bytes_text, count

logger = logging.getLogger(__name__)

_AT_ONCE = 16
"""Files that are fetched at the same time."""
Files = Mapping[str, StoredFile]
"""Name → object."""
Leave = Callable[[StoredFolder, Files], Files]
"""Gives those of the objects of a folder that are not fetched with the others."""


def leave_nothing(_source: StoredFolder, _stored: Files) -> Files:
    return {}


@dataclass(frozen=True)
class KeptFolder:
    """A folder that is worked on in ``folder`` and kept in the store as ``stored``."""

    stored: StoredFolder
    folder: Path

    @classmethod
    def of(cls, url: str, key: str = "") -> "KeptFolder":
        """The folder at ``url``, which ``key`` names. Raises ConfigError for a URL that has no local place."""
        return cls(StoredFolder(url.rstrip("/")), local_place(url, key))

    def fetch(self) -> None:
        """Makes the local side equal to the store, unless a command on this machine is working on it.

        The shards of a dataset and the tensors of checkpoints are left: they come when they are read. Raises DataError
        if the store does not give a file.
        """
        coming = self._fetch_unless_worked_on()
        if not self.folder.exists() or self._is_behind_link():
            self._fetch_through_link()
        make_room(coming)

    def _fetch_unless_worked_on(self) -> int:
        """As ``fetch``; returns the bytes that are left."""
        hold(self.folder)
        with fetching(self.folder), ExitStack() as stack:
            try:
                for folder in (self.folder, *self.folder.parents):  # or on a folder above it
                    if folder == cache_folder():
                        break
                    if folder == self.folder or beside(folder, "work").is_file():
                        stack.enter_context(working(folder))
            except DlrmError:
                return 0
            left = _fetch(self.stored, self.folder, _read_later)
        bring_later(self.stored, self.folder, left)
        return sum(file.bytes for file in left.values())

    def _is_behind_link(self) -> bool:
        """True if the local side is found through a link, which may lead elsewhere by now in the store."""
        places = (self.folder, *self.folder.parents)
        return any(place.is_symlink() for place in places if cache_folder() in place.parents)

    def _fetch_through_link(self) -> None:
        """Fetches what a link leads to, where the object itself, or one above it, is a link in the store."""
        parts = self.stored.url.split("/")
        for end in range(len(parts), 4, -1):  # scheme:, nothing, bucket, and at least one name
            above = KeptFolder.of("/".join(parts[:end]))
            if (target := above.stored.link()) is not None:
                above._fetch_unless_worked_on()
                KeptFolder.of("/".join([*parts[: end - 1], target, *parts[end:]])).fetch()
                return

    @contextmanager
    def fetched_for_work(self, leave: Leave = leave_nothing) -> Iterator[Callable[[], None]]:
        """Fetches, then holds both sides for this process while the block runs.

        ``leave``: gives the files that stay in the store, for who reads them.
        Yields a function that raises DlrmError once another machine has taken the folder over. Raises DlrmError if
        another command works on it, DataError if nothing can be written there.
        """
        hold(self.folder)
        with ExitStack() as stack:
            with fetching(self.folder):
                stack.enter_context(working(self.folder))
                check = stack.enter_context(held_lease(self.stored))
                _delete_cut_off(self.stored, self.folder)
                left = _fetch(self.stored, self.folder, leave)
            note_left(self.folder, left)
            bring_later(self.stored, self.folder, left)
            yield check


def fetched(path: str | Path) -> Path:
    """The folder at ``path``, which a record names: a URL, or a local place of a store, is fetched."""
    url = str(path) if is_in_store(str(path)) else url_of(Path(path))
    if url is None:
        return Path(path)
    kept = KeptFolder.of(url)
    kept.fetch()
    return kept.folder


def _fetch(source: StoredFolder, folder: Path, leave: Leave) -> dict[str, StoredFile]:
    """Makes ``folder`` equal to ``source`` if the store has changed since they were last equal.

    If it has not, the local side may be ahead: a killed command had not sent all that it had finished.
    ``leave``: gives the files that are left, to be brought when they are read. Returns those that are not local.
    """
    stored, local = source.list(), dict(files_in(folder))
    no_files = {*notes_in(stored), *cut_off(stored, folder)}
    stored = {name: file for name, file in stored.items() if name not in no_files}
    known = arrived(read_known(folder), local)
    if not _differing(stored, known, local):
        return {}
    wanted = [name for name in stored if not _has(name, stored[name], known, local)]
    # a file or link that is the whole folder is replaced in one step
    _delete_outdated(folder, {*local} - {*stored} | {*local} & {*wanted} - {""})
    known = {name: _with_tag(known[name], stored[name]) for name in stored.keys() - wanted}
    later = leave(source, stored)
    left = {name: later[name] for name in wanted if name in later}
    wanted = [name for name in wanted if name not in left]
    known |= {name: RememberedFile.coming(file) for name, file in left.items()}
    if wanted:
        size = bytes_text(sum(stored[name].bytes for name in wanted))
        logger.info("fetching %s (%s) of %s", count(len(wanted), "file"), size, source)
    fetch_files(source, folder, known, wanted)
    return left


def _delete_cut_off(source: StoredFolder, folder: Path) -> None:
    """Deletes what a killed command had sent of folders that must appear whole, and notes of those that are."""
    stored = source.list()
    cut = {*cut_off(stored, folder)}
    notes = {note for note in notes_in(stored) if note in cut or has_arrived(note, stored)}
    for names in (cut - notes, notes):  # notes last, as this process may be killed too
        source.delete(names)


def fetch_files(source: StoredFolder, folder: Path, known: Known, wanted: Iterable[str]) -> None:
    """Fetches the files ``wanted``, marks last, and remembers them with those that are ``known``. Raises DataError."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        try:
            for names in in_order(wanted):
                for _ in threads.map(partial(_fetch_one, source, folder, known), names):
                    pass
        finally:
            threads.shutdown(cancel_futures=True)
            write_known(folder, known)


def _read_later(source: StoredFolder, stored: Files) -> Files:
    # what a finished dataset was made with: its last command deletes it, also at this moment
    idle = {n: file for n, file in stored.items() if MANIFEST in stored and n.startswith(JOURNALS_OF_WORK)}
    return {**shards_in(source, stored), **tensors_in(source, stored), **idle}


def _differing(stored: Files, known: Known, local: Mapping[str, FileState]) -> list[str]:
    """The files that another machine has written or deleted."""
    written = [name for name, file in stored.items() if not (name in known and known[name].agrees(file))]
    deleted = [
        name for name, file in known.items() if name in local and name not in stored and not file.is_going_up
    ]
    return written + deleted


def _has(name: str, file: StoredFile, known: Known, local: Mapping[str, FileState]) -> bool:
    """True if the local file is the stored one."""
    return name in known and name in local and known[name].agrees(file) and known[name].state == local[name]


def _with_tag(known: RememberedFile, stored: StoredFile) -> RememberedFile:
    return replace(known, tag=stored.tag, is_going_up=False)


def _delete_outdated(folder: Path, names: set[str]) -> None:
    """Deletes local files, marks first."""
    for name in sorted(names, key=lambda name: (not is_mark(name), name)):
        (folder / name).unlink(missing_ok=True)
        for parent in (folder / name).parents if name else ():
            if any(parent.iterdir()):
                break
            parent.rmdir()
            if parent == folder:
                break


def _fetch_one(source: StoredFolder, folder: Path, known: Known, name: str) -> None:
    """Fetches a file, and adds it to ``known``."""
    path = folder / name
    stored = source.get(name, path)
    known[name] = RememberedFile.of(state_of(path), stored)
