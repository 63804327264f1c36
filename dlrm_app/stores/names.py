"""The local place of a URL, and the URL of a local place. Neither needs the library that speaks to stores.

    s3://bucket/runs/one   ↔   FOLDER/s3/bucket/runs/one

FOLDER is DLRM_STORE_FOLDER, by default ``dlrm-app/stores`` in the user's cache folder. A store with an endpoint of its
own has this in its name: FOLDER/s3@127.0.0.1:9000/bucket/runs/one. Places are computed, so the path from a run to its
dataset is the same on every machine.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlrm_app.errors import ConfigError, Problem
from dlrm_app.text import without_credentials

_SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az"}
"""The scheme of a URL → the name of its store's folder, which is a scheme too. Web servers keep nothing."""
_ENDPOINTS = {"s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"), "az": ("AZURE_ENDPOINT",)}
_MAX_NAME = 255
"""The most bytes of a file's name."""


def cache_folder() -> Path:
    """The folder of the local sides of all stores."""
    if given := os.environ.get("DLRM_STORE_FOLDER"):
        return Path(given).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dlrm-app" / "stores"


def is_in_store(text: object) -> bool:
    """True for the URL of a store that files can be kept in."""
    return isinstance(text, str) and text.partition("://")[0].lower() in _SCHEMES and "://" in text


def local_place(url: str, key: str = "") -> Path:
    """The local place of ``url``. Raises ConfigError, naming ``key``, for a URL that has none."""
    scheme, _, rest = url.partition("://")
    store = _SCHEMES[scheme.lower()]
    parts = rest.rstrip("/").split("/")
    shown = f"{key}={without_credentials(url)}" if key else without_credentials(url)
    if len(parts) < 2:
        raise ConfigError(Problem(shown, "names no folder of the bucket", f"add one: {shown}/NAME"))
    if not all(0 < len(part.encode()) <= _MAX_NAME and part not in (".", "..") for part in parts):
        rule = "has a part that cannot be the name of a local folder: empty, '.', '..' or over 255 bytes"
        raise ConfigError(Problem(shown, rule, "give another name"))
    return cache_folder().joinpath(store + _endpoint(store), *parts)


def url_of(place: Path) -> str | None:
    """The URL whose local place is ``place``; None for other paths."""
    absolute = Path(os.path.normpath(place.absolute()))
    folder = cache_folder()
    if folder not in absolute.parents or len(names := absolute.relative_to(folder).parts) < 3:
        return None
    return f"{names[0].partition('@')[0]}://{'/'.join(names[1:])}"


def portable(path: Path) -> str:
    """``path`` for ranks on other machines: its URL, if it has one."""
    return url_of(path) or str(path)


def here(path: str) -> Path:
    """The path on this machine that ``portable`` has named on another one."""
    return local_place(path) if is_in_store(path) else Path(path)


def named(text: str) -> str:
    """``text`` with URLs in place of the local places of stores, as users and records read it."""
    folder = f"{cache_folder()}/"
    if folder not in text:
        return text
    return re.sub(rf"{re.escape(folder)}([a-z0-9]+)(@[^/\s]*)?/", r"\1://", text)


def with_urls(value: Any) -> Any:
    """``value``, of a configuration, with URLs in place of local places in its texts."""
    if isinstance(value, str):
        return named(value)
    if isinstance(value, Mapping):
        return {key: with_urls(each) for key, each in value.items()}
    return [*map(with_urls, value)] if isinstance(value, list | tuple) else value


def _endpoint(store: str) -> str:
    given = next(filter(None, map(os.environ.get, _ENDPOINTS.get(store, ()))), "")
    return "@" + given.partition("://")[2].strip("/").replace("/", "_") if given else ""
