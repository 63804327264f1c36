"""Files that are either complete or absent: a temporary name, fsync, then rename."""

import errno
import math
import os
import re
import resource
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dlrm_app.errors import DlrmError, Problem
from dlrm_app.text import bytes_text, json_text, without_credentials

MAX_ALIASED = 100_000
"""The most values in a YAML file with aliases; a value counts once for each alias that names it."""


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yields a temporary path to write; it gets its final name only if the block succeeds.

    The temporary file is beside the final one (same file system), so the rename is atomic.
    """
    temporary = temporary_name(path)
    try:
        yield temporary
        rename_synced(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        error.filename = error.filename or str(path)  # errors of an open file have none
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def folder_written_whole(path: Path) -> Iterator[Path]:
    """Yields a temporary folder that replaces ``path`` only if the block succeeds."""
    temporary = temporary_name(path)
    old = temporary.with_suffix(".old")
    try:
        temporary.mkdir()
        yield temporary
        sync_folder(temporary)
        if path.exists():
            path.rename(old)
        temporary.rename(path)
        sync_folder(path.parent)
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        for folder in (temporary, old):
            shutil.rmtree(folder, ignore_errors=True)


def temporary_name(path: Path) -> Path:
    """A name beside ``path`` that no other writer uses."""
    # random: processes of several machines, with equal process ids even, may write the same file at the same time
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def rename_synced(temporary: Path, path: Path) -> None:
    """Gives a written file its final name once its bytes are on the disk."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def sync_folder(folder: Path) -> None:
    """Makes renames in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.EFBIG),
    *(errno.ENOTDIR, errno.ENAMETOOLONG, errno.EEXIST, errno.EISDIR),
)


def is_disk_error(error: OSError) -> bool:
    """True if ``error`` comes from a disk or a path, and is not a bug."""
    return _is_full(error) or error.errno in _REFUSED


def _is_full(error: OSError) -> bool:
    """True for a full disk. numpy's tofile and save report it only in words, without an error number."""
    return error.errno in _FULL or (error.errno is None and " requested and " in str(error))


def ensure_room(folder: Path, num_bytes: int) -> None:
    """Raises OSError if a file of ``num_bytes`` cannot be written.

    For C++ writers that would end the process on failure.
    """
    if shutil.disk_usage(folder).free < num_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    if num_bytes > (limit := file_limit()):
        wanted = f"a file of {bytes_text(num_bytes)} is larger than ulimit -f allows ({bytes_text(limit)})"
        raise OSError(errno.EFBIG, wanted)


def file_limit() -> float:
    """The most bytes that this process may write into one file (``ulimit -f``); inf if there is no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return math.inf if limit == resource.RLIM_INFINITY else limit


@contextmanager
def explained_disk_errors(output: Path, then: str) -> Iterator[None]:
    """Turns disk errors into DlrmError. ``then``: what to do once the cause is fixed."""
    try:
        yield
    except OSError as error:
        if _is_full(error):
            raise DlrmError(
                Problem(f"output={output}", "has no room left on its disk", f"free some, {then}")
            ) from error
        if error.errno in _REFUSED:
            rule = f"cannot be written ({error.strerror})"
            raise DlrmError(Problem(str(error.filename or output), rule, f"fix that, {then}")) from error
        raise


def room_problems(key: str, folder: Path, num_bytes: int) -> list[Problem]:
    """A problem if ``num_bytes``, which ``key`` asks for, do not fit at ``folder``."""
    free = shutil.disk_usage(folder).free
    if num_bytes <= free:
        return []
    rule = f"needs about {bytes_text(num_bytes)} at {folder}, which has {bytes_text(free)} free"
    return [Problem(key, rule, "ask for less, or choose an output on another disk")]


def output_problems(key: str, path: Path, *, is_folder: bool = False, is_new: bool = False) -> list[Problem]:
    """Reasons why a job cannot write the file or folder ``path`` that ``key`` names. Call it before any work.

    Folders above it need not exist: the job makes them. With ``is_new`` the path itself must not exist.
    """
    if re.match("[a-z][a-z0-9+.-]+:/", str(path)):
        shown = without_credentials(str(path).replace(":/", "://", 1))
        cure = "give a folder, and copy it afterwards"
        return [Problem(f"{key}={shown}", "is a URL, and output must be on a file system", cure)]
    try:
        nearest = _nearest_existing(path.absolute())
    except OSError as error:  # a name that is too long, a link to itself
        return [Problem(f"{key}={path}", f"cannot be written ({error.strerror})", "give another name")]
    fault, cure = "", "give another name"
    if nearest == path.absolute():
        if is_new:
            fault, cure = "exists", "give another name, or delete it"
        elif is_folder != nearest.is_dir():
            kinds = ["file", "folder"]
            fault, cure = f"is a {kinds[not is_folder]}", f"give the name of a {kinds[is_folder]}"
        nearest = nearest if is_folder else nearest.parent
    if not fault and not nearest.is_dir():
        fault = f"lies in {nearest}, which is not a folder"
    elif not fault and not os.access(nearest, os.W_OK):
        fault = f"lies in {nearest}, where you may not write"
        cure = "name another folder, or get permission to write there"
    return [Problem(f"{key}={path}", fault, cure)] if fault else []


def is_file(path: Path) -> bool:
    """True if ``path`` is a file; False also for names that are too long or cannot be accessed."""
    try:
        return path.is_file()
    except OSError:
        return False


def _nearest_existing(path: Path) -> Path:
    while True:
        try:
            path.stat()
            return path
        except (FileNotFoundError, NotADirectoryError) as error:
            if path.is_symlink():
                text = f"{path} is a link to {path.readlink()}, which is not there"
                raise FileNotFoundError(errno.ENOENT, text) from error
            path = path.parent


def yaml_text(path: Path) -> str:
    """The text of a YAML file. Raises ValueError if its aliases expand to more values than a person would write.

    Nine lists of nine aliases each, in a few hundred bytes, would expand to 400 million values.
    """
    text = path.read_text(encoding="utf-8")
    if "*" not in text:
        return text
    import yaml

    sizes: dict[str, int] = {}
    # the anchor of each open list or mapping, and the values before it
    parents: list[tuple[str | None, int]] = []
    count = 0
    for event in yaml.parse(text, yaml.CSafeLoader):
        if isinstance(event, yaml.AliasEvent):
            count += sizes.get(str(event.anchor), MAX_ALIASED + 1)  # unknown if it contains itself
        elif isinstance(event, yaml.CollectionStartEvent):
            parents.append((event.anchor, count))
        elif isinstance(event, yaml.ScalarEvent | yaml.CollectionEndEvent):
            anchor, before = (
                parents.pop() if isinstance(event, yaml.CollectionEndEvent) else (event.anchor, count)
            )
            count += 1
            sizes |= {anchor: count - before} if anchor else {}
        if sizes and count > MAX_ALIASED:
            raise ValueError(f"its aliases (*name) stand for more than {MAX_ALIASED:,} values: write fewer")
    return text


def write_text(path: Path, text: str) -> None:
    """Writes ``text`` to ``path``; the file is complete or absent."""
    with written_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """Writes ``value`` as indented JSON, with null for NaN, to ``path``; the file is complete or absent."""
    write_text(path, json_text(value, indent=2) + "\n")


def escapes(name: str) -> bool:
    """True if ``name``, a path relative to a folder, may name a file outside of the folder."""
    path = Path(name)
    return path.is_absolute() or ".." in path.parts
