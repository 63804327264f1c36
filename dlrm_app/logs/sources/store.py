"""Objects of a store: lists, versions and bytes. Nothing else knows the library that speaks to stores.

Objects are named by URLs such as s3://bucket/key. The library repeats a request that fails after a growing pause.
"""

import os
import re
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from dlrm_app.errors import DataError, Problem, first_line
from dlrm_app.logs.sources.folders import above_all, matches_beginning
from dlrm_app.text import without_credentials
from dlrm_app.typed import install_command

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

AT_ONCE = 64
"""The number of requests that wait for answers at the same time."""
KEPT_EACH, _KEPT = 1 << 17, 1 << 27
"""The first bytes to keep of an object, and of all objects."""
_FEW = 8
"""The most objects that are asked for their versions one by one; for more, the list is trusted."""
PATIENCE_SECONDS = 60
"""The seconds without an answer after which reading fails."""
_SCHEMES = {name: name for name in ("s3", "s3a", "gs", "az", "abfs", "abfss", "http", "https")} | {
    "gcs": "gs"
}
"""The scheme of a URL → its name in the library."""
_SETTINGS = ("AWS_", "GOOGLE_", "AZURE_", "NO_PROXY", "HTTP_PROXY", "HTTPS_PROXY")
"""The beginnings of the names of environment variables that a store depends on."""
_ASKED_AGAIN = timedelta(seconds=1)
"""boto3 renews the credentials of a profile when it is asked for them, which the library would do every 25 minutes."""
A = TypeVar("A")
B = TypeVar("B")
Version = tuple[int, str]
"""The bytes of an object, and the tag and date that its store reports."""


class Address(str):
    """The URL of an object, without credentials.

    ``url``: the URL with credentials.
    ``path``: the object's path in its store.
    ``above``: the folder or glob in whose list the object was found.
    ``listed``: the object's version in that list; None if such lists cannot be trusted.
    ``beginning``: the first bytes, kept in this process.
    """

    url: str
    path: str
    above: str
    listed: Version | None
    beginning: bytes

    def __new__(
        cls, shown: str, url: str = "", path: str = "", above: str = "", listed: Version | None = None
    ) -> "Address":
        self = super().__new__(cls, shown)
        self.url, self.path, self.above, self.listed, self.beginning = url, path, above, listed, b""
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return Address, (str(self), self.url, self.path, self.above, self.listed)


def is_url(name: str) -> bool:
    return re.match(r"[A-Za-z][\w+.-]*://", name) is not None


def address_of(url: str) -> Address:
    """The address of the object ``url``. Raises DataError if no store has such URLs."""
    return Address(without_credentials(url), url, open_store(url)[1])


def objects_below(url: str) -> tuple[list[Address], str]:
    """Returns (the objects of a folder or glob, and of the folders below; the folder above all), or (one object,
    itself). Objects without bytes are left out.

    Raises DataError if the store does not answer.
    """
    store, path = open_store(url)
    one = Address(without_credentials(url), url, path)
    if re.match("https?:", url):
        if "*" not in url:
            return [one], one
        raise DataError(Problem(str(one), "is on a web server, which does not list files", "name each"))
    with explained(one):
        is_glob = re.search(r"[*?[]", path) is not None and not _exists(store, path)
        above = above_all(path).rstrip("/") if is_glob else path.rstrip("/")
        pattern = path[len(above) :].strip("/").split("/") if is_glob else []
        infos = [info for info in _matching(store, above, pattern) if info["size"]]
    if not infos and not is_glob:
        return [one], one
    root = url.removesuffix(path).rstrip("/") + "/"
    found = [
        Address(without_credentials(each), each, info["path"], url, _version_of(info))
        for info in infos
        for each in [root + info["path"]]
    ]
    if len(found) <= _FEW or not _can_trust_lists([found[0], found[len(found) // 2], found[-1]]):
        for address in found:
            address.listed = None
    return found, without_credentials(above_all(url) if is_glob else url)


def _exists(store: "ObjectStore", path: str) -> bool:
    with suppress(FileNotFoundError):
        return bool(store.head(path))
    return False


def _matching(store: "ObjectStore", folder: str, pattern: Sequence[str]) -> Iterator["ObjectMeta"]:
    """The objects below ``folder`` whose path there, or a folder above them, ``pattern`` matches."""
    if not pattern or "**" in pattern:
        for info in store.list(folder or None, chunk_size=1000).collect():
            if matches_beginning(info["path"].removeprefix(folder).lstrip("/").split("/"), pattern):
                yield info
        return
    found = store.list_with_delimiter(folder or None)
    if not pattern[1:]:
        yield from (info for info in found["objects"] if fnmatchcase(Path(info["path"]).name, pattern[0]))
    for inner in found["common_prefixes"]:
        if fnmatchcase(Path(inner).name, pattern[0]):
            yield from _matching(store, inner, pattern[1:])


def _can_trust_lists(addresses: Sequence[Address]) -> bool:
    """True if the store's lists give ``addresses`` the versions that single requests give."""
    with suppress(DataError):
        return in_threads(_ask, addresses) == [address.listed for address in addresses]
    return False


def object_version(address: Address) -> Version:
    """The version of an object. Raises DataError."""
    return address.listed or _ask(address)


def versions_now(addresses: Sequence[Address]) -> list[Version]:
    """The versions that the objects have now. Raises DataError."""
    lists = dict.fromkeys(address.above for address in addresses if address.listed is not None)
    now = {(url, found.path): found.listed for url in lists for found in objects_below(url)[0]}
    return in_threads(lambda address: now.get((address.above, address.path)) or _ask(address), addresses)


def _ask(address: Address) -> Version:
    with explained(address):
        return _version_of(open_store(address.url)[0].head(address.path))


def _version_of(info: "ObjectMeta") -> Version:
    tags = ((info["e_tag"] or "").strip('"'), info["version"] or "")
    # lists have fractions of seconds, answers do not
    return info["size"], " ".join([*filter(None, tags), f"{info['last_modified']:%Y-%m-%d %H:%M:%S%z}"])


def keep_beginnings(objects: Mapping[Address, Version]) -> None:
    """Fetches the first bytes of each object, which several readers need, and keeps them in its address.

    ``objects``: address → version. Readers fetch what is not kept, and explain what cannot be fetched.
    """
    most = min(KEPT_EACH, _KEPT // max(len(objects), 1))

    def keep(address: Address) -> None:
        version = objects[address]
        with suppress(DataError):
            address.beginning = fetch(address, 0, min(most, version[0]), version)

    in_threads(keep, [*objects])


def fetch(address: Address, start: int, stop: int, version: Version) -> bytes:
    """Bytes [start, stop) of an object. Raises DataError, also if it no longer has ``version``."""
    if start >= stop:
        return b""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        with explained(address):
            result = open_store(address.url)[0].get(address.path, options={"range": (start, stop)})
            refuse_change(address, version, _version_of(result.meta))
            try:
                return bytes(result.bytes())
            except OSError:  # cut off more often than the library repeats
                if time.monotonic() > until:
                    raise


@contextmanager
def explained(address: str, verb: str = "read") -> Iterator[None]:
    """Raises DataError, with a cure, for errors of the library. ``verb``: what is done, as a participle."""
    from obstore.exceptions import (
        BaseError,
        InvalidPathError,
        NotSupportedError,
        PermissionDeniedError,
        UnauthenticatedError,
    )

    refusal = Problem(
        str(address),
        f"must not be {verb}: there is no permission",
        "check the credentials in the environment",
    )
    try:
        yield
    except FileNotFoundError as error:
        problem = Problem(str(address), "does not exist", "check the name and the endpoint")
        raise DataError(problem) from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise DataError(refusal) from error
    except InvalidPathError as error:
        rule = f"has an object whose name is not a path ({first_line(error)})"
        raise DataError(Problem(str(address), rule, "rename or delete that object")) from error
    except NotSupportedError as error:
        fault = "is on a server that does not give parts of files"
        raise DataError(Problem(str(address), fault, "copy it to a disk")) from error
    except (BaseError, OSError) as error:
        reason = without_credentials(first_line(error))
        cure = "run the same command again later"
        if "ExpiredToken" in str(error):
            rule, cure = (
                f"must not be {verb}: the credentials have expired",
                "renew them, then run the same command again",
            )
            raise DataError(Problem(str(address), rule, cure)) from error
        if "404 Not Found" in reason:  # of a list: there is no such bucket
            problem = Problem(str(address), "does not exist", "check the bucket and the endpoint")
            raise DataError(problem) from error
        if "403 Forbidden" in reason or "401 Unauthorized" in reason:  # of a list too
            raise DataError(refusal) from error
        # the addresses where machines of a cloud find their credentials
        if "169.254.169.254" in reason or "metadata.google" in reason:
            reason, cure = "no credentials were found", "set them in the environment"
        raise DataError(Problem(str(address), f"cannot be {verb} ({reason})", cure)) from error


def open_store(url: str) -> tuple["ObjectStore", str]:
    """Returns (the store of ``url``, the path in it). Raises DataError if no store has such URLs."""
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    query = ""
    if scheme in ("http", "https"):
        path, mark, given = path.partition("?")
        path, query = unquote(path), mark + given
    if scheme.lower() not in _SCHEMES:
        known = ", ".join(f"{name}://" for name in _SCHEMES)
        raise DataError(Problem(without_credentials(url), f"is in no store that can be read: {known}"))
    root = f"{_SCHEMES[scheme.lower()]}://{host}{query}"
    settings = (item for item in os.environ.items() if item[0].upper().startswith(_SETTINGS))
    return _open_store(root, frozenset(settings)), path


@lru_cache(maxsize=64)
def _open_store(root: str, settings: frozenset[tuple[str, str]]) -> "ObjectStore":
    """The store at ``root``; ``settings``: the environment variables that it was opened with."""
    from obstore import store as stores
    from obstore.exceptions import BaseError

    from_url: Any = stores.from_url  # its overloads know the settings of each store by name
    scheme, _, rest = root.partition("://")
    options: Any = {"allow_http": True, "timeout": timedelta(seconds=PATIENCE_SECONDS)}
    retries: Any = {"max_retries": 10, "retry_timeout": timedelta(seconds=PATIENCE_SECONDS)}
    try:
        if scheme in ("http", "https"):
            user, at, host = rest.rpartition("@")
            if at:
                password = b64encode(unquote(user).encode()).decode()
                options["default_headers"] = {"Authorization": f"Basic {password}"}
            return stores.HTTPStore.from_url(
                f"{scheme}://{host}", client_options=options, retry_config=retries
            )
        given = _aws_profile(root, dict(settings)) if scheme.startswith("s3") else {}
        return from_url(root, client_options=options, retry_config=retries, **given)
    except (BaseError, ValueError) as error:
        reason = without_credentials(first_line(error))
        raise DataError(Problem(without_credentials(root), f"cannot be read ({reason})")) from error


def _aws_profile(root: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """The credentials, region and endpoint of a profile in ~/.aws, unless the environment has a key."""
    files = [
        settings.get(f"AWS_{name}", str(Path.home() / ".aws" / place))
        for name, place in (("SHARED_CREDENTIALS_FILE", "credentials"), ("CONFIG_FILE", "config"))
    ]
    has_key = "AWS_ACCESS_KEY_ID" in settings or "AWS_SKIP_SIGNATURE" in settings
    if has_key or not ("AWS_PROFILE" in settings or any(Path(file).is_file() for file in files)):
        return {}
    try:
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        rule = "needs boto3, which is missing, to read ~/.aws"
        raise DataError(Problem(root, rule, install_command("s3"))) from error
    session = Session()
    try:
        profile = session.get_scoped_config()
        has_credentials = session.get_credentials() is not None
    except BotoCoreError as error:
        raise DataError(Problem(root, f"cannot be read ({error})", "check AWS_PROFILE and ~/.aws")) from error
    config = {"region": profile.get("region"), "endpoint": profile.get("endpoint_url")}
    unset = {"region": "AWS_REGION", "endpoint": "AWS_ENDPOINT_URL"}
    found: dict[str, Any] = {
        key: value for key, value in config.items() if value and unset[key] not in settings
    }
    if has_credentials:
        found["credential_provider"] = Boto3CredentialProvider(session, ttl=_ASKED_AGAIN)
    return found


def refuse_change(path: str, before: Sequence[int | str], now: Sequence[int | str]) -> None:
    """Raises DataError if (bytes, …) of a file have changed."""
    if tuple(now) != tuple(before):
        rule = f"changed while it was being read ({before[0]:,} bytes before, {now[0]:,} now)"
        cure = "delete the output and preprocess again once nothing writes to it"
        raise DataError(Problem(str(path), rule, cure))


def in_threads(act: Callable[[A], B], items: Sequence[A]) -> list[B]:
    """Calls ``act`` with each item, many at a time, because each may wait for an answer; results are in order."""
    with ThreadPoolExecutor(min(AT_ONCE, len(items) or 1)) as threads:
        return list(threads.map(act, items))
