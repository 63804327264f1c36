"""The objects below a URL, as files of a folder: listed, read, written, copied and deleted."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlrm_app.checksums import checksum
from dlrm_app.errors import DataError, Problem
from dlrm_app.files import written_whole
from dlrm_app.logs.sources.store import explained, open_store
from dlrm_app.text import without_credentials

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore.store import ObjectStore

CHECKSUM = "sha256"
"""The attribute of an object that holds the checksum of its bytes."""
_PART_BYTES = 1 << 23
"""The bytes of a part of a large upload."""
_PARTS_AT_ONCE = 4


@dataclass(frozen=True)
class StoredFile:
    """An object: its bytes, the tag that its store reports, which differs if the bytes do, and their checksum.

    The checksum is empty where only a list has been read.
    """

    bytes: int
    tag: str
    checksum: str = ""


@dataclass(frozen=True)
class StoredFolder:
    """The objects below ``url``, by their names from there; "" names the object ``url`` itself.

    All methods raise DataError, with a cure.
    """

    url: str

    def __str__(self) -> str:
        return without_credentials(self.url)

    def list(self) -> dict[str, StoredFile]:
        """Name → object, of all objects below. If there are none: "" → the object itself, if it exists.

        Marks of empty folders are left out.
        """
        found: dict[str, StoredFile] = {}
        with self._opened("", "listed") as (store, folder):
            for each in store.list(folder, chunk_size=1000).collect():
                found[each["path"].removeprefix(f"{folder}/")] = StoredFile(each["size"], _tag(each["e_tag"]))
            found.pop(folder, None)  # the mark of the folder
            if not found:
                with suppress(FileNotFoundError):
                    itself = store.head(folder)
                    return {"": StoredFile(itself["size"], _tag(itself["e_tag"]))}
        above = {str(parent) for name in found for parent in Path(name).parents}
        return {name: file for name, file in found.items() if file.bytes or name not in above}

    def get(self, name: str, path: Path) -> StoredFile:
        """Fetches an object to ``path``, whole or not at all.

        An object whose bytes differ from the checksum that it was written with is fetched once more, then named.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._opened(name, "read") as (store, place):
            for _ in range(2):
                with suppress(_OtherBytesError), written_whole(path) as temporary:
                    return _fetch(store.get(place), temporary)
        rule, cure = "has other bytes than were written (checksum)", "delete it, and make it again"
        raise DataError(Problem(f"{self}/{name}", rule, cure))

    def put(self, name: str, path: Path) -> StoredFile:
        """Writes the file at ``path`` as an object, large ones in parts. Raises FileNotFoundError if it is gone."""
        size, digest = path.stat().st_size, checksum(path)
        with self._opened(name, "written") as (store, place):
            attributes: Any = {CHECKSUM: digest}
            result = store.put(
                place, path, attributes=attributes, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE
            )
            return StoredFile(size, _tag(result["e_tag"]), digest)

    def copy(self, name: str, to: str, digest: str) -> StoredFile:
        """Copies an object, whose checksum is ``digest``, within the store."""
        with self._opened("", "copied") as (store, folder):
            store.copy(_place(folder, name), _place(folder, to))
            found = store.head(_place(folder, to))
            return StoredFile(found["size"], _tag(found["e_tag"]), digest)

    def delete(self, names: Iterable[str]) -> None:
        """Deletes objects, which need not exist."""
        with self._opened("", "deleted") as (store, folder):
            if places := [_place(folder, name) for name in names]:
                store.delete(places)

    @contextmanager
    def _opened(self, name: str, verb: str) -> Iterator[tuple["ObjectStore", str]]:
        """(the store, the path there of object ``name``), with errors explained."""
        shown = f"{self}/{name}" if name else str(self)
        with explained(shown, verb):
            store, folder = open_store(self.url)
            folder = folder.rstrip("/")
            yield store, _place(folder, name)


class _OtherBytesError(Exception):
    """Raised if fetched bytes differ from those that were written."""


def _fetch(answer: "GetResult", path: Path) -> StoredFile:
    """Writes the bytes of an ``answer`` to ``path``. Raises _OtherBytesError."""
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for piece in answer.stream(min_chunk_size=1 << 20):
            file.write(piece)
            digest.update(piece)
            size += len(piece)
    found = f"sha256:{digest.hexdigest()}"
    if size != answer.meta["size"] or answer.attributes.get(CHECKSUM, found) != found:
        raise _OtherBytesError
    return StoredFile(size, _tag(answer.meta["e_tag"]), found)


def _place(folder: str, name: str) -> str:
    return f"{folder}/{name}" if name else folder


def _tag(tag: Any) -> str:
    return str(tag or "").strip('"')
