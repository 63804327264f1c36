"""Lists local folders and globs, linked folders included, for the input of all commands."""

import glob
import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from dlrm_app.errors import ConfigError, Problem

_Identity = tuple[int, int]
"""Device and inode."""
_NO_DATA = {
    "hidden, or a mark of a finished job": r"([._][^/=]*|lost\+found)(/.*)?",
    "a description": r"[^/]*(\.best\.json|\.ya?ml)",
    "half written": r"[^/]*\.(tmp|temp|inprogress(\.[^/]*)?|pending|part|partial|filepart|incomplete|crdownload|download"
    r"|aria2|gstmp|_COPYING_)",
    "a checksum or a signature": r"[^/]*\.(crc|crc32|md5|sha1|sha256|sha512|b3|sfv|asc|sig|etag)"
    r"|(?i:[^/]*(md5|sha1|sha256|sha512|check)sums?(\.txt)?)",
    "an editor's or a system's own": r"[^/]*(~|\.sw[op]|\.bak|\.lock|_\$folder\$)|(?i:thumbs\.db|desktop\.ini)",
}
"""Names of files beside the data, which other programs leave; the first also of folders, with all below them."""
_MARKER = re.compile("(^|/)(" + "|".join(_NO_DATA.values()) + ")$")


class NoFilesError(ConfigError):
    """Raised if no file has the given names; other problems are ConfigErrors."""


def local_path(path: str) -> str:
    """``path``, without the prefix of a file:// URL."""
    return re.sub("^file:(//)?(?=/)", "", path)


def above_all(name: str) -> str:
    """The folder above all files that the folder or glob ``name`` can match."""
    return re.split(r"[^/]*[*?[]", name)[0]


def without_markers(paths: Sequence[str], above: str) -> list[str]:
    """The files with data among ``paths``, which all lie in the folder ``above``."""
    return [path for path in paths if not _MARKER.search(path.removeprefix(above).lstrip("/"))]


def files_below(name: str) -> tuple[Sequence[str], str]:
    """Returns (the files of a folder or glob, and of the folders below; the folder above all), or (one file, itself).

    Empty files are left out. Raises ConfigError for a link to a folder above itself, and for a folder that cannot be
    read.
    """
    is_glob = glob.has_magic(name) and not Path(name).exists()
    if not is_glob and not Path(name).is_dir():
        return [name], name
    above = above_all(name)
    if "**" in name.split("/") and is_glob:
        inside = _matching(above, name.removeprefix(above).rstrip("/").split("/"))
    else:
        found = glob.glob(name) if is_glob else [name]  # noqa: PTH207  # Path.glob refuses absolute patterns
        inside = {file for path in found for file in (_walk(path) if Path(path).is_dir() else [path])}
    return [file for file in inside if not Path(file).is_file() or Path(file).stat().st_size], above


def _matching(above: str, pattern: Sequence[str]) -> set[str]:
    """The files in the folder ``above`` that match ``pattern``, which has a ``**``.

    glob.glob would follow loops of links.
    """
    if not Path(above or ".").is_dir():
        return set()
    paths = (path if above else path.removeprefix("./") for path in _walk(above or "."))
    return {path for path in paths if matches_beginning(path.removeprefix(above).split("/"), pattern)}


def matches_beginning(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """True if ``pattern`` matches the path ``parts`` or a folder above it; ``**`` matches any folders."""
    if not pattern:
        return True
    first, rest = pattern[0], pattern[1:]
    if first == "**":
        return any(matches_beginning(parts[skipped:], rest) for skipped in range(len(parts) + 1))
    return len(parts) > 0 and fnmatchcase(parts[0], first) and matches_beginning(parts[1:], rest)


def _walk(top: str) -> Iterator[str]:
    """All files below the folder ``top``, except in hidden folders."""
    parents = Path(top).resolve().parents
    yield from _walk_on(top, frozenset(map(_identity, parents)))


def _walk_on(folder: str, above: frozenset[_Identity]) -> Iterator[str]:
    if (identity := _identity(Path(folder))) in above:
        target = Path(folder).resolve()
        cure = "remove it, or name what to read"
        raise ConfigError(Problem(str(folder), f"is a link to {target}, a folder above it", cure))
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.is_dir()) for entry in entries]
    except OSError as error:
        raise ConfigError(Problem(folder, f"cannot be read ({error.strerror})")) from error
    for name, is_folder in found:
        path = os.path.join(folder, name)  # noqa: PTH118  # ./ stays
        if not is_folder:
            yield path
        elif not _MARKER.search(f"{name}/"):
            yield from _walk_on(path, above | {identity})


def _identity(folder: Path) -> _Identity:
    status = folder.stat()
    return status.st_dev, status.st_ino
