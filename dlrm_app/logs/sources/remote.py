"""Objects of a store: lists, versions and bytes; they are named by fsspec URLs such as s3://bucket/key.

A request that fails is repeated after a growing pause.
"""

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from dlrm_app.errors import DataError, Problem
from dlrm_app.text import without_credentials
from dlrm_app.typed import install_command

logger = logging.getLogger(__name__)

AT_ONCE = 64
"""The number of requests that wait for answers at the same time."""
KEPT_EACH, _KEPT = 1 << 17, 1 << 27
"""The first bytes to keep of an object, and of all objects."""
_FEW = 8
"""Each of so few objects is asked for its version; of more objects the list is believed."""
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
_OF_BOTO = ("s3", "s3a")
"""The schemes whose driver has ten connections unless it is told otherwise."""
A = TypeVar("A")
B = TypeVar("B")


class Address(str):
    """The URL of an object, without credentials.

    ``url``: the URL with them; ``path``: the object's path in its store. ``listed``: the version that the list of the
    folder or glob ``above`` tells, None if it cannot be believed. ``beginning``: the first bytes, kept in this process.
    """

    url: str
    path: str
    above: str
    listed: tuple[int, str] | None
    beginning: bytes

    def __new__(
        cls,
        shown: str,
        url: str = "",
        path: str = "",
        above: str = "",
        listed: tuple[int, str] | None = None,
    ) -> "Address":
        self = super().__new__(cls, shown)
        self.url, self.path, self.above, self.listed, self.beginning = url, path, above, listed, b""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Address, (str(self), self.url, self.path, self.above, self.listed)


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

    def list_infos() -> dict[str, Any] | None:
        is_glob = re.search(r"[*?[]", path) and not store.exists(path)
        if not is_glob and not store.isdir(path):
            return None
        folders = store.glob(path, detail=True) if is_glob else {path: {"type": "directory"}}
        found: dict[str, Any] = {}
        for name, info in folders.items():
            found |= store.find(name, detail=True) if info["type"] == "directory" else {name: info}
        return {name: info for name, info in found.items() if info["type"] == "file" and info["size"] != 0}

    infos = _patiently(one, list_infos)
    if infos is None:
        return [one], one
    above, *shown = (without_credentials(store.unstrip_protocol(name)) for name in (above_all(path), *infos))
    found = [
        Address(name, url, path, url, _version_of(info))
        for name, (path, info) in zip(shown, infos.items(), strict=True)
    ]
    if len(found) <= _FEW or not _is_told_by_lists([found[0], found[len(found) // 2], found[-1]]):
        for address in found:
            address.listed = None
    return found, above


def _is_told_by_lists(addresses: Sequence[Address]) -> bool:
    """True if lists tell of ``addresses`` what the store answers if it is asked for each."""
    with suppress(DataError):
        return in_threads(_ask, addresses) == [address.listed for address in addresses]
    return False


def look_at(address: Address) -> tuple[int, str]:
    """(bytes, version) of an object. The version is the tag and the date that the store reports. Raises DataError."""
    return address.listed or _ask(address)


def versions_now(addresses: Sequence[Address]) -> list[tuple[int, str]]:
    """What ``look_at`` said of each object, as it is now. Raises DataError."""
    lists = dict.fromkeys(address.above for address in addresses if address.listed is not None)
    now = {(url, found.path): found.listed for url in lists for found in objects_below(url)[0]}
    return in_threads(lambda address: now.get((address.above, address.path)) or _ask(address), addresses)


def _ask(address: Address) -> tuple[int, str]:
    return _patiently(address, lambda: _look_at(address))


def _look_at(address: Address) -> tuple[int, str]:
    info = _store(address.url)[0].info(address.path)
    if info.get("size") is None or info["type"] != "file":
        raise DataError(
            Problem(
                str(address), "is in a store that does not tell its size", "copy it to a disk and give that"
            )
        )
    return info["size"], _tag_of(info)


def _version_of(info: Mapping[str, Any]) -> tuple[int, str]:
    """(bytes, version) of an object that a list describes. Lists tell fractions of seconds where answers do not."""
    whole = {key: it.replace(microsecond=0) if isinstance(it, datetime) else it for key, it in info.items()}
    return info["size"] or 0, _tag_of(whole)


def _tag_of(info: Mapping[str, Any]) -> str:
    return " ".join(str(info[key]).strip('"') for key in _VERSION_KEYS if info.get(key))


def keep_beginnings(objects: Mapping[Address, tuple[int, str]]) -> None:
    """Fetches the first bytes of each object, which several readers need, and keeps them in its address.

    ``objects``: address → version. Readers fetch what is not kept, and explain what cannot be fetched.
    """
    most = min(KEPT_EACH, _KEPT // max(len(objects), 1))
    stores: dict[int, tuple[Any, list[Address]]] = {}
    for address in objects:
        store = _store(address.url)[0]
        stores.setdefault(id(store), (store, []))[1].append(address)
    for store, addresses in stores.values():
        if not store.async_impl:
            continue
        ends = [min(most, objects[address][0]) for address in addresses]
        paths = [address.path for address in addresses]
        # one call takes two thirds of the time of as many in threads
        beginnings = store.cat_ranges(paths, [0] * len(ends), ends, batch_size=AT_ONCE, on_error="return")
        for address, end, beginning in zip(addresses, ends, beginnings, strict=True):
            if isinstance(beginning, bytes) and len(beginning) == end:
                address.beginning = beginning


def _store(url: str) -> tuple[Any, str]:
    """Returns (the fsspec file system of ``url``, the path in it)."""
    import fsspec  # importing it takes time, and its driver too

    scheme = url.partition("://")[0].lower()
    options = fsspec.config.conf.get(scheme, {}).get("config_kwargs", {})
    connections = {"config_kwargs": {"max_pool_connections": AT_ONCE, **options}}
    try:
        return fsspec.core.url_to_fs(
            url, use_listings_cache=False, **(connections if scheme in _OF_BOTO else {})
        )
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


def in_threads(act: Callable[[A], B], items: Sequence[A]) -> list[B]:
    """Calls ``act`` with each item, many at a time, because each may wait for an answer; results are in order."""
    with ThreadPoolExecutor(min(AT_ONCE, len(items) or 1)) as threads:
        return list(threads.map(act, items))
