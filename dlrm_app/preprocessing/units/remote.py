"""Objects of a store, named by fsspec URLs such as s3://bucket/key: found, looked at, and read by ranges of bytes.

A file that is read tells its ranges when it is opened; threads fetch the next ones meanwhile, so that the latency of
each answer costs little. A request that fails is made again after a growing pause.
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
from functools import cache
from typing import Any, TypeVar

from dlrm_app.errors import DataError
from dlrm_app.text import install_command, without_credentials

logger = logging.getLogger(__name__)

_PIECE, _SMALL = 4 << 20, 1 << 16
"""Bytes of a request: of what is fetched ahead, and the least."""
_MOST = 64 << 20
"""Bytes up to which all ranges of a file are fetched at once."""
_AHEAD = 3
"""Pieces to fetch ahead where there are more than that."""
_NEAR = 1 << 18
"""Bytes between two ranges that are fetched with them in one request."""
_TRIES, _PATIENCE = 10, 60
"""Requests, and seconds, without an answer after which an object is given up."""
_TOLD = [
    *("ETag", "etag", "generation", "LastModified", "last_modified", "Last-Modified", "updated", "mtime"),
    "created",
]
"""What stores call the version of an object."""
_NO_PERMISSION = {"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError"}
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "http": "http", "https": "http"}
_EXTRAS |= dict.fromkeys(("abfs", "abfss", "az"), "azure")
A = TypeVar("A")
B = TypeVar("B")


class Address(str):
    """The URL of an object as it may be shown. ``url`` and ``path``: what opens its store, credentials included, and it."""

    url: str
    path: str

    def __new__(cls, shown: str, url: str = "", path: str = "") -> "Address":
        self = super().__new__(cls, shown)
        self.url, self.path = url, path
        return self


def is_url(name: str) -> bool:
    return re.match(r"[A-Za-z][\w+.-]*://", name) is not None


def address_of(url: str) -> Address:
    """The one object that ``url`` names. Raises DataError for a driver that is missing."""
    return Address(without_credentials(url), url, _store(url)[1])


def above_all(name: str) -> str:
    """The folder that holds all that the folder or glob ``name`` can mean."""
    return re.split(r"[^/]*[*?[]", name)[0]


def objects_below(url: str) -> tuple[list[Address], str]:
    """(the objects in a folder or of a glob, and in the folders below; the folder above all), or (one object, itself).

    Raises DataError if the store cannot be asked.
    """
    store, path = _store(url)
    one = Address(without_credentials(url), url, path)
    if re.match("https?:", url):
        if "*" not in url:
            return [one], one
        raise DataError(f"{one}: a web server does not list files: name each")

    def ask() -> list[str] | None:
        is_glob = re.search(r"[*?[]", path) and not store.exists(path)
        if not is_glob and not store.isdir(path):
            return None
        folders = store.glob(path, detail=True) if is_glob else {path: {"type": "directory"}}
        found: dict[str, Any] = {}
        for name, info in folders.items():
            found |= store.find(name, detail=True) if info["type"] == "directory" else {name: info}
        return [name for name, info in found.items() if info["type"] == "file" and info["size"] != 0]

    names = _patiently(one, ask)
    if names is None:
        return [one], one
    above, *shown = (without_credentials(store.unstrip_protocol(name)) for name in (above_all(path), *names))
    return [Address(name, url, path) for name, path in zip(shown, names, strict=True)], above


def look_at(address: Address) -> tuple[int, str]:
    """(bytes, version) of an object; the version is what the store tells of tag and date. Raises DataError."""
    return _patiently(address, lambda: _look_at(address))


def _look_at(address: Address) -> tuple[int, str]:
    info = _store(address.url)[0].info(address.path)
    if info.get("size") is None or info["type"] != "file":
        raise DataError(f"{address}: the store does not tell its size: copy it to a disk and give that")
    return info["size"], " ".join(str(info[key]).strip('"') for key in _TOLD if info.get(key))


def _store(url: str) -> tuple[Any, str]:
    """(the fsspec file system of ``url``, its path there)."""
    import fsspec  # with its driver it takes time to import

    scheme = url.partition("://")[0].lower()
    try:
        return fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        cure = install_command(_EXTRAS[scheme]) if scheme in _EXTRAS else str(error)
        raise DataError(
            f"{without_credentials(url)}: the driver of {scheme}:// is missing: {cure}"
        ) from error
    except (ValueError, OSError) as error:
        raise DataError(without_credentials(f"{url}: {error}")) from error


def _patiently(address: Address, act: Callable[[], A], version: Any = None) -> A:
    """``act()``, again after growing pauses if it fails. Raises DataError, also if ``version`` is not the object's now."""
    until = time.monotonic() + _PATIENCE
    failed = 0
    while True:
        try:
            return act()
        except DataError:
            raise
        except Exception as error:  # drivers have errors of their own
            failed += 1
            if version is not None and failed == 2:
                now = version
                with suppress(Exception):
                    now = _look_at(address)
                refuse_change(address, version, now)
            reason = without_credentials(f"{type(error).__name__}: {error}".splitlines()[0])
            if fault := _lasting_fault(error):
                raise DataError(f"{address}: {fault}") from error
            is_ours = isinstance(error, TypeError | LookupError | AttributeError | ValueError)
            if is_ours or failed == _TRIES or time.monotonic() > until:
                raise DataError(
                    f"{address} cannot be read ({reason}): run the same command again later"
                ) from error
            if failed == 3:
                logger.warning(f"{address} does not answer ({reason}): trying again")
            time.sleep(min(0.05 * 2**failed, 10))


def _lasting_fault(error: Exception) -> str:
    """A fault that will not pass, and its cure; empty for others."""
    cause, name = error.__cause__, type(error).__name__
    if isinstance(error, FileNotFoundError) and type(cause).__module__.startswith("aiohttp"):
        error = cause  # type: ignore[assignment]  # fsspec says so of whatever a web server answers
    status = getattr(error, "status", None)
    if isinstance(error, PermissionError) or status in (401, 403) or name in _NO_PERMISSION:
        return "no permission to read it: check the credentials that its driver finds in the environment"
    is_misnamed = name == "ParamValidationError"  # botocore's, of a bucket
    if is_misnamed or isinstance(error, FileNotFoundError) or status in (404, 410):
        return "no such bucket or object: check the name and the endpoint"
    return ""


def fetch(address: Address, start: int, stop: int, version: tuple[int, str]) -> bytes:
    """Bytes [start, stop) of an object that has ``version``, as ``look_at`` gives it. Raises DataError."""

    def ask() -> bytes:
        piece: bytes = _store(address.url)[0].cat_file(address.path, start=start, end=stop)
        if len(piece) > stop - start:
            raise DataError(f"{address}: the server does not give parts of files: copy it to a disk")
        if not piece and start < stop:
            raise EOFError("no bytes came")
        return piece

    pieces = []
    while start < stop:
        pieces.append(_patiently(address, ask, version))
        start += len(pieces[-1])
    return b"".join(pieces)


def refuse_change(path: str, before: Sequence[Any], now: Sequence[Any]) -> None:
    """Raises DataError if (bytes, …) of a file are not what they were."""
    if tuple(now) != tuple(before):
        raise DataError(
            f"{path} changed while it was being read ({before[0]:,} bytes before, {now[0]:,} now): "
            "delete the output and preprocess again once nothing writes to it"
        )


class RemoteFile(io.RawIOBase):
    """An object, to be read by one thread. ``extents``: what of it will be read, each from its beginning to its end."""

    def __init__(
        self, address: Address, version: tuple[int, str], extents: Sequence[tuple[int, int]] = ()
    ) -> None:
        super().__init__()
        self._address, self._version, self._size = address, version, version[0]
        self._takes_all = sum(stop - start for start, stop in extents) <= _MOST
        runs = _joined(extents) if self._takes_all else sorted(extents)
        step = _PIECE if self._takes_all else min(max(_MOST // ((_AHEAD + 1) * len(runs)), _SMALL), _PIECE)
        self._pieces = [
            (at, min(at + step, stop), run)  # those of one run are read in their order
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
        """Bytes read into ``buffer``, fewer than it holds where a piece ends; 0 only at the end."""
        start, data = self._bytes_here()
        part = memoryview(data)[self._at - start : self._at - start + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def _bytes_here(self) -> tuple[int, bytes]:
        """Bytes among which is the next one, and where they begin."""
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
        """The last piece that begins at ``at`` or before."""
        return bisect_right(self._pieces, at, key=lambda piece: piece[0]) - 1

    def _fetch_from(self, number: int) -> None:
        """Has a piece and those behind it fetched, and forgets those before it."""
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
    """``extents`` in order, those with little between them as one."""
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
    """``act`` of each of ``items``, in order, many at a time, as each may wait for an answer."""
    with ThreadPoolExecutor(min(32, len(items) or 1)) as threads:
        return list(threads.map(act, items))
