"""Lists and reads objects of a store, which are named by fsspec URLs such as s3://bucket/key.

The ranges of bytes to read are given when an object is opened. Threads fetch the next ranges in the background, which
hides the latency of requests. A request that fails is repeated after a growing pause.
"""

import io
import logging
import os
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from dlrm_app.errors import DataError, Problem
from dlrm_app.text import without_credentials
from dlrm_app.typed import install_command

logger = logging.getLogger(__name__)

_PIECE, _SMALL = 4 << 20, 1 << 16
"""The bytes of a request in the background, and of the smallest request."""
_MOST = 64 << 20
"""If the ranges of a file have at most so many bytes, all are fetched at once."""
_AHEAD = 3
"""The number of pieces to prefetch if the ranges have more bytes than that."""
_NEAR = 1 << 18
"""Two ranges with at most so many bytes between them are fetched in one request."""
_TRIES, _PATIENCE = 10, 60
"""Reading fails after so many requests, or seconds, without an answer."""
_VERSION_KEYS = [
    *("ETag", "etag", "generation", "LastModified", "last_modified", "Last-Modified", "updated", "mtime"),
    "created",
]
"""The names that stores give to the version of an object."""
_NO_PERMISSION = {"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError"}
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "http": "http", "https": "http"}
_EXTRAS |= dict.fromkeys(("abfs", "abfss", "az"), "azure")
A = TypeVar("A")
B = TypeVar("B")


class Address(str):
    """The URL of an object, without credentials.

    ``url``: the URL with them; ``path``: the object's path in its store.
    """

    url: str
    path: str

    def __new__(cls, shown: str, url: str = "", path: str = "") -> "Address":
        self = super().__new__(cls, shown)
        self.url, self.path = url, path
        return self


def is_url(name: str) -> bool:
    return re.match(r"[A-Za-z][\w+.-]*://", name) is not None


def address_of(url: str) -> Address:
    """The address of the object ``url``. Raises DataError if its driver is missing."""
    return Address(without_credentials(url), url, _store(url)[1])


def above_all(name: str) -> str:
    """The folder above all files that the folder or glob ``name`` can match."""
    return re.split(r"[^/]*[*?[]", name)[0]


def objects_below(url: str) -> tuple[list[Address], str]:
    """Returns (the objects of a folder or glob, and of the folders below; the folder above all), or (one object,
    itself).

    Raises DataError if the store does not answer.
    """
    store, path = _store(url)
    one = Address(without_credentials(url), url, path)
    if re.match("https?:", url):
        if "*" not in url:
            return [one], one
        raise DataError(Problem(str(one), "is on a web server, which does not list files", "name each"))

    def list_names() -> list[str] | None:
        is_glob = re.search(r"[*?[]", path) and not store.exists(path)
        if not is_glob and not store.isdir(path):
            return None
        folders = store.glob(path, detail=True) if is_glob else {path: {"type": "directory"}}
        found: dict[str, Any] = {}
        for name, info in folders.items():
            found |= store.find(name, detail=True) if info["type"] == "directory" else {name: info}
        return [name for name, info in found.items() if info["type"] == "file" and info["size"] != 0]

    names = _patiently(one, list_names)
    if names is None:
        return [one], one
    above, *shown = (without_credentials(store.unstrip_protocol(name)) for name in (above_all(path), *names))
    return [Address(name, url, path) for name, path in zip(shown, names, strict=True)], above


def look_at(address: Address) -> tuple[int, str]:
    """(bytes, version) of an object. The version is the tag and the date that the store reports. Raises DataError."""
    return _patiently(address, lambda: _look_at(address))


def _look_at(address: Address) -> tuple[int, str]:
    info = _store(address.url)[0].info(address.path)
    if info.get("size") is None or info["type"] != "file":
        raise DataError(
            Problem(
                str(address), "is in a store that does not tell its size", "copy it to a disk and give that"
            )
        )
    return info["size"], " ".join(str(info[key]).strip('"') for key in _VERSION_KEYS if info.get(key))


def _store(url: str) -> tuple[Any, str]:
    """Returns (the fsspec file system of ``url``, the path in it)."""
    import fsspec  # importing it takes time, and its driver too

    scheme = url.partition("://")[0].lower()
    try:
        return fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        cure = install_command(_EXTRAS[scheme]) if scheme in _EXTRAS else str(error)
        raise DataError(
            Problem(without_credentials(url), f"needs the driver of {scheme}://, which is missing", cure)
        ) from error
    except (ValueError, OSError) as error:
        shown = without_credentials(f"cannot be read ({error})")
        raise DataError(Problem(without_credentials(url), shown)) from error


def _patiently(address: Address, act: Callable[[], A], version: tuple[int, str] | None = None) -> A:
    """Calls ``act``, again after growing pauses if it fails.

    Raises DataError, also if the object's version has changed.
    """
    until = time.monotonic() + _PATIENCE
    failed = 0
    while True:
        try:
            return act()
        except DataError:
            raise
        except Exception as error:  # each driver raises errors of its own
            failed += 1
            if version is not None and failed == 2:
                now = version
                with suppress(Exception):
                    now = _look_at(address)
                refuse_change(address, version, now)
            reason = without_credentials(f"{type(error).__name__}: {error}".splitlines()[0])
            if lasting := _lasting_fault(error):
                raise DataError(replace(lasting, key=str(address))) from error
            is_bug = isinstance(error, TypeError | LookupError | AttributeError | ValueError)
            if is_bug or failed == _TRIES or time.monotonic() > until:
                raise DataError(
                    Problem(str(address), f"cannot be read ({reason})", "run the same command again later")
                ) from error
            if failed == 3:
                logger.warning(f"{address} does not answer ({reason}): trying again")
            time.sleep(min(0.05 * 2**failed, 10))


def _lasting_fault(error: Exception) -> Problem | None:
    """A fault that repeating does not help; None for other faults."""
    cause, name = error.__cause__, type(error).__name__
    if isinstance(error, FileNotFoundError) and type(cause).__module__.startswith("aiohttp"):
        error = cause  # type: ignore[assignment]  # fsspec raises it for any answer of a web server
    status = getattr(error, "status", None)
    if isinstance(error, PermissionError) or status in (401, 403) or name in _NO_PERMISSION:
        cure = "check the credentials that its driver finds in the environment"
        return Problem("", "must not be read: there is no permission", cure)
    is_misnamed = name == "ParamValidationError"  # botocore's, of a bucket
    if is_misnamed or isinstance(error, FileNotFoundError) or status in (404, 410):
        return Problem("", "does not exist", "check the name and the endpoint")
    return None


def fetch(address: Address, start: int, stop: int, version: tuple[int, str]) -> bytes:
    """Bytes [start, stop) of an object whose version, by ``look_at``, is ``version``. Raises DataError."""

    def read_piece() -> bytes:
        piece: bytes = _store(address.url)[0].cat_file(address.path, start=start, end=stop)
        if len(piece) > stop - start:
            raise DataError(
                Problem(str(address), "is on a server that does not give parts of files", "copy it to a disk")
            )
        if not piece and start < stop:
            raise EOFError("no bytes came")
        return piece

    pieces = []
    while start < stop:
        pieces.append(_patiently(address, read_piece, version))
        start += len(pieces[-1])
    return b"".join(pieces)


def refuse_change(path: str, before: Sequence[int | str], now: Sequence[int | str]) -> None:
    """Raises DataError if (bytes, …) of a file have changed."""
    if tuple(now) != tuple(before):
        raise DataError(
            Problem(
                str(path),
                f"changed while it was being read ({before[0]:,} bytes before, {now[0]:,} now)",
                "delete the output and preprocess again once nothing writes to it",
            )
        )


class RemoteFile(io.RawIOBase):
    """An object, read by one thread. ``extents``: the ranges that will be read, each from its beginning to its end."""

    def __init__(
        self, address: Address, version: tuple[int, str], extents: Sequence[tuple[int, int]] = ()
    ) -> None:
        super().__init__()
        self._address, self._version, self._size = address, version, version[0]
        self._takes_all = sum(stop - start for start, stop in extents) <= _MOST
        runs = _joined(extents) if self._takes_all else sorted(extents)
        step = _PIECE if self._takes_all else min(max(_MOST // ((_AHEAD + 1) * len(runs)), _SMALL), _PIECE)
        self._pieces = [
            (at, min(at + step, stop), run)  # the pieces of one run are read in order
            for run, (start, stop) in enumerate(runs)
            for at in range(start, stop, step)
        ]
        self._fetched: dict[int, Future[bytes]] = {}
        self._loose = (0, b"")
        self._at = 0
        for start, _ in runs:
            self._fetch_from(self._number_of(start))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Reads into ``buffer``, up to the end of a piece. Returns the number of bytes, 0 only at the file's end."""
        start, data = self._bytes_here()
        part = memoryview(data)[self._at - start : self._at - start + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def _bytes_here(self) -> tuple[int, bytes]:
        """Returns (the position of some bytes, the bytes), with the next byte among them."""
        number = self._number_of(self._at)
        if number >= 0 and self._at < self._pieces[number][1]:
            self._fetch_from(number)
            return self._pieces[number][0], self._fetched[number].result()
        start, data = self._loose
        if not start <= self._at < start + len(data):
            stop = min(self._at + _SMALL, self._size)
            self._loose = self._at, fetch(self._address, self._at, stop, self._version)
        return self._loose

    def _number_of(self, at: int) -> int:
        """The last piece that begins at ``at`` or earlier."""
        return bisect_right(self._pieces, at, key=lambda piece: piece[0]) - 1

    def _fetch_from(self, number: int) -> None:
        """Prefetches this piece and the next ones; drops earlier ones."""
        run = self._pieces[number][2]
        last = len(self._pieces) if self._takes_all else number + 1 + _AHEAD
        for other, (start, stop, its_run) in enumerate(self._pieces[number:last], number):
            if its_run == run and other not in self._fetched:
                self._fetched[other] = _threads().submit(fetch, self._address, start, stop, self._version)
        if not self._takes_all:
            for other in [it for it in self._fetched if it < number and self._pieces[it][2] == run]:
                self._fetched.pop(other).cancel()

    def close(self) -> None:
        for piece in self._fetched.values():
            piece.cancel()
        self._fetched = {}
        super().close()


def _joined(extents: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """``extents`` in order; close ones are joined."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(extents):
        if joined and start - joined[-1][1] <= _NEAR:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        elif start < stop:
            joined.append((start, stop))
    return joined


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(32, "fetch")


def in_threads(act: Callable[[A], B], items: Sequence[A]) -> list[B]:
    """Calls ``act`` with each item, many at a time, because each may wait for an answer; results are in order."""
    with ThreadPoolExecutor(min(32, len(items) or 1)) as threads:
        return list(threads.map(act, items))
