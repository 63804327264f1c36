"""The objects below a URL, as files of a folder: listed, read, written, copied and deleted."""

import hashlib
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlrm_app.checksums import checksum, data_checksum, text_checksum
from dlrm_app.errors import DataError, Problem
from dlrm_app.files import escapes, temporary_name, written_whole
from dlrm_app.logs.sources.store import explained, open_store
from dlrm_app.text import without_credentials

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore.store import ObjectStore

logger = logging.getLogger(__name__)

CHECKSUM, LINK = "sha256", "link"
"""Attributes of an object: the checksum of its bytes; that it stands for a link, and holds its target."""
LEASE = ".lease"
"""The object below a folder that names the command that works there; it is not a file of the folder."""
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
            for name in (LEASE, folder):  # the second is the mark of the folder
                found.pop(name, None)
            if not found:
                with suppress(FileNotFoundError):
                    itself = store.head(folder)
                    return {"": StoredFile(itself["size"], _tag(itself["e_tag"]))}
        above = {str(parent) for name in found for parent in Path(name).parents}
        return {name: file for name, file in found.items() if file.bytes or name not in above}

    def get(self, name: str, path: Path, digest: str = "") -> StoredFile:
        """Fetches an object to ``path``, whole or not at all.

        An object whose bytes differ from the checksum that it was written with, or from ``digest``, is fetched once
        more, then named.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._opened(name, "read") as (store, place):
            for _ in range(2):
                with suppress(_OtherBytesError):
                    answer = store.get(place)
                    if LINK in answer.attributes:
                        return _make_link(answer, path)
                    with written_whole(path) as temporary:
                        return _fetch(answer, temporary, digest)
        raise self._of_other_bytes(name)

    def get_part(self, name: str, begin: int, end: int, digest: str) -> bytes:
        """The bytes of an object from ``begin`` to ``end``, whose checksum is ``digest``; fetched twice if they differ."""
        with self._opened(name, "read") as (store, place):
            for _ in range(2):
                data = bytes(store.get_range(place, start=begin, end=end))
                if data_checksum(data) == digest:
                    return data
        raise self._of_other_bytes(name)

    def _of_other_bytes(self, name: str) -> DataError:
        rule, cure = "has other bytes than were written (checksum)", "delete it, and make it again"
        return DataError(Problem(f"{self}/{name}", rule, cure))

    def put(self, name: str, path: Path) -> StoredFile:
        """Writes the file or link at ``path`` as an object, large ones in parts.

        Raises FileNotFoundError if it is gone.
        """
        target = str(path.readlink()).encode() if path.is_symlink() else None
        size, digest = path.lstat().st_size, file_checksum(path)
        with self._opened(name, "written") as (store, place):
            attributes: Any = {CHECKSUM: digest} | ({} if target is None else {LINK: "true"})
            data: Any = path if target is None else target
            result = store.put(
                place, data, attributes=attributes, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE
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

    def link(self) -> str | None:
        """The target if the object ``url`` stands for a link; None for others, and if there is none."""
        with self._opened("", "read") as (store, place), suppress(FileNotFoundError):
            answer = store.get(place)
            return bytes(answer.bytes()).decode() if LINK in answer.attributes else None
        return None

    def create(self, name: str, data: bytes) -> str | None:
        """Writes an object that does not exist; returns its tag. None if it exists, also if it was made meanwhile."""
        return self._write_if(name, data, "create")

    def replace(self, name: str, data: bytes, tag: str) -> str | None:
        """Writes an object that has ``tag``; returns its new tag. None if it has another one by now."""
        return self._write_if(name, data, {"e_tag": f'"{tag}"'})

    def write(self, name: str, data: bytes) -> None:
        """Writes a small object that no checksum is needed of, whether it exists or not."""
        with self._opened(name, "written") as (store, place):
            store.put(place, data, use_multipart=False)

    def has(self, name: str) -> bool:
        with self._opened(name, "read") as (store, place), suppress(FileNotFoundError):
            store.head(place)
            return True
        return False

    def read(self, name: str) -> tuple[bytes, str] | None:
        """(bytes, tag) of a small object; None if it does not exist."""
        with self._opened(name, "read") as (store, place), suppress(FileNotFoundError):
            answer = store.get(place)
            return bytes(answer.bytes()), _tag(answer.meta["e_tag"])
        return None

    def _write_if(self, name: str, data: bytes, mode: Any) -> str | None:
        from obstore import exceptions as errors

        with self._opened(name, "written") as (store, place):
            try:
                return _tag(store.put(place, data, mode=mode, use_multipart=False)["e_tag"])
            except (errors.AlreadyExistsError, errors.PreconditionError, errors.NotFoundError):
                return None
            except (errors.NotSupportedError, NotImplementedError):
                warning = (
                    "%s: the store has no conditional requests, so nothing keeps two machines apart there"
                )
                logger.warning(warning, self)
                return _tag(store.put(place, data, use_multipart=False)["e_tag"])

    @contextmanager
    def _opened(self, name: str, verb: str) -> Iterator[tuple["ObjectStore", str]]:
        """(the store, the path there of object ``name``), with errors explained."""
        shown = str(self) if name in ("", LEASE) else f"{self}/{name}"
        with explained(shown, verb):
            store, folder = open_store(self.url)
            folder = folder.rstrip("/")
            yield store, _place(folder, name)


class _OtherBytesError(Exception):
    """Raised if fetched bytes differ from those that were written."""


def _fetch(answer: "GetResult", path: Path, wanted: str) -> StoredFile:
    """Writes the bytes of an ``answer`` to ``path``. Raises _OtherBytesError if ``wanted`` is not their checksum."""
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for piece in answer.stream(min_chunk_size=1 << 20):
            file.write(piece)
            digest.update(piece)
            size += len(piece)
    found = f"sha256:{digest.hexdigest()}"
    known = {wanted, answer.attributes.get(CHECKSUM, "")} - {""}
    if size != answer.meta["size"] or known - {found}:
        raise _OtherBytesError
    return StoredFile(size, _tag(answer.meta["e_tag"]), found)


def _make_link(answer: "GetResult", path: Path) -> StoredFile:
    """Makes the link that an object stands for. Raises DataError if it leads out of the folder above it."""
    target = bytes(answer.bytes()).decode()
    if escapes(target):
        raise DataError(Problem(str(path), f"is a link to {target}, outside of its folder", "delete it"))
    temporary = temporary_name(path)
    temporary.symlink_to(target)
    temporary.replace(path)
    return StoredFile(path.lstat().st_size, _tag(answer.meta["e_tag"]), file_checksum(path))


def file_checksum(path: Path) -> str:
    """The checksum of a file's bytes, or of a link's target. Raises FileNotFoundError."""
    return text_checksum(str(path.readlink())) if path.is_symlink() else checksum(path)


def _place(folder: str, name: str) -> str:
    return f"{folder}/{name}" if name else folder


def _tag(tag: Any) -> str:
    return str(tag or "").strip('"')
