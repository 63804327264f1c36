"""The files of a folder that is kept in a store: which ones are kept, which ones are marks, what is known of each."""

import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from dlrm_app.files import escapes, write_json
from dlrm_app.locks import held_lock
from dlrm_app.records import read_record
from dlrm_app.stores.names import cache_folder, local_place, named
from dlrm_app.stores.objects import StoredFile

WHOLE = ("manifest.json", "complete.json", "export.json", "day.json", "result.json")
"""Files that make their folder whole; they are written last."""
_FOLDERS = ".folders"
"""The folder with files about the local folders."""
_PUBLISHED = "published"
"""The link to a published day."""
JOURNALS_OF_WORK = ".work/"
"""The beginning of the names of what a dataset is made with."""
_JOURNALS = {".work", "scored"}
"""Folders with journals, of preprocessing and of scores."""
_UNFINISHED = re.compile(
    r"(^|/)(\.[^/]+\.(tmp|old|partial|replaced)|[^/]*\.lock|\.work/(lock$|ranks/))(/|$)?"
)
"""Files that are being written, and locks."""


class FileState(NamedTuple):
    """The state of a local file: it differs if the file is written again, and is kept by a rename."""

    bytes: int
    modified_ns: int
    inode: int


def is_record(name: str) -> bool:
    """True for the record of finished work in a journal, and for the plan that the journals belong to."""
    return name.endswith(".json") and not _JOURNALS.isdisjoint(name.split("/")[:-1])


def is_mark(name: str) -> bool:
    """True if other files are only valid with this one: it goes up after them, and is deleted before them."""
    return is_record(name) or name.rpartition("/")[2] in (*WHOLE, _PUBLISHED)


def in_order(names: Iterable[str]) -> list[list[str]]:
    """``names`` in the groups in which they may appear: data, records, then the deepest marks before those above."""
    groups: dict[tuple[int, int], list[str]] = {}
    for name in sorted(names):
        kind = (2, -name.count("/")) if is_mark(name) and not is_record(name) else (int(is_record(name)), 0)
        groups.setdefault(kind, []).append(name)
    return [groups[kind] for kind in sorted(groups)]


def state_of(path: Path) -> FileState:
    status = path.lstat()
    return FileState(status.st_size, status.st_mtime_ns, status.st_ino)


def files_in(folder: Path, above: str = "") -> Iterator[tuple[str, FileState]]:
    """(name, state) of the finished files below ``folder``, or ("", state) of a file or a link within the store.

    Links that lead elsewhere are left out.
    """
    if not above and folder.is_symlink() and not escapes(str(folder.readlink())):
        yield "", state_of(folder)
        return
    try:
        entries = [*os.scandir(folder)]
    except FileNotFoundError:
        return
    except NotADirectoryError:
        yield "", state_of(folder)
        return
    for entry in entries:
        name = f"{above}{entry.name}"
        if _UNFINISHED.search(name):
            continue
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from files_in(Path(entry.path), f"{name}/")
            elif entry.is_file(follow_symlinks=False) or _is_link_within(entry):
                yield name, state_of(Path(entry.path))
        except FileNotFoundError:  # deleted meanwhile
            continue


def _is_link_within(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and not escapes(str(Path(entry.path).readlink()))


@dataclass(frozen=True)
class RememberedFile:
    """A file as the local side and the store had it when they were last equal.

    ``is_going_up``: True while another state of it is being sent, of ``bytes``.
    ``is_coming``: True for a shard that is brought when it is read; what is local then is whole, and of ``tag``.
    """

    bytes: int
    modified_ns: int
    inode: int
    tag: str
    checksum: str
    is_going_up: bool = False
    is_coming: bool = False

    @classmethod
    def coming(cls, stored: StoredFile) -> "RememberedFile":
        return cls(stored.bytes, 0, 0, stored.tag, stored.checksum, is_coming=True)

    @classmethod
    def of(cls, state: FileState, stored: StoredFile) -> "RememberedFile":
        return cls(*state, stored.tag, stored.checksum)

    @property
    def state(self) -> FileState:
        return FileState(self.bytes, self.modified_ns, self.inode)

    def agrees(self, stored: StoredFile) -> bool:
        """True if the store has what this side knows, or is sending."""
        return stored.tag == self.tag or (self.is_going_up and stored.bytes == self.bytes)


Known = dict[str, RememberedFile]
"""Name → file, of the files that the store has."""


def going_up(known: Known, states: dict[str, FileState]) -> Known:
    """``known``, with the files of ``states`` marked as being sent."""
    fresh = {
        name: replace(known.get(name, RememberedFile(0, 0, 0, "", "")), bytes=state.bytes, is_going_up=True)
        for name, state in states.items()
    }
    return {**known, **fresh}


def arrived(known: Known, local: Mapping[str, FileState]) -> Known:
    """``known``, with the shards that have come, and without those that have not."""
    came = {
        name: RememberedFile(*local[name], file.tag, file.checksum)
        for name, file in known.items()
        if file.is_coming and name in local and local[name].bytes == file.bytes
    }
    return {name: file for name, file in known.items() if not file.is_coming} | came


def fetching(folder: Path) -> AbstractContextManager[None]:
    """Keeps other processes of this machine from fetching ``folder``, or deleting it."""
    return held_lock(beside(folder, "fetch"), "", math.inf)


def working(folder: Path) -> AbstractContextManager[None]:
    """Keeps other commands of this machine from working on ``folder``. Raises DlrmError if one does."""
    refusal = f"another command on this machine works on {named(str(folder))}: wait for it, or end it"
    return held_lock(beside(folder, "work"), refusal)


@contextmanager
def rank_folder(url: str, rank: int) -> Iterator[Path]:
    """Yields an empty local folder in which ``rank`` works on ``url``, for ranks that share no disk; deletes it at the
    end.

    Raises DlrmError if another command on this machine works there.
    """
    folder = local_place(f"{url}.rank-{rank}")
    with working(folder):
        _forget(folder)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            _forget(folder)


def _forget(folder: Path) -> None:
    """Deletes the local ``folder``, and nothing in the store."""
    shutil.rmtree(folder, ignore_errors=True)
    beside(folder, "json").unlink(missing_ok=True)


def marks_of_use() -> list[Path]:
    """A file for each folder that was used, which names it."""
    return [*(cache_folder() / _FOLDERS).glob("*.used")]


def beside(folder: Path, suffix: str) -> Path:
    """The path of a file about the local ``folder``, outside of it."""
    name = sha256(os.fsencode(folder.relative_to(cache_folder()))).hexdigest()[:32]
    path = cache_folder() / _FOLDERS / f"{name}.{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def read_known(folder: Path) -> Known:
    """The notes about the files of ``folder``; empty if there are none."""
    path = beside(folder, "json")
    return read_record(path, Known, f"delete {path}") if path.is_file() else {}


def write_known(folder: Path, known: Known) -> None:
    """Remembers ``known``."""
    write_json(beside(folder, "json"), {name: asdict(each) for name, each in known.items()})
