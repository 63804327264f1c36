"""Input files, and the names, globs and lists that users give for them."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from isal import igzip, isal_zlib

from dlrm_app.config.datasets import InputConfig
from dlrm_app.config.schema import SPLITS
from dlrm_app.dataset.parquet import MAGIC as PARQUET_MAGIC
from dlrm_app.errors import ConfigError, DataError, refuse_if
from dlrm_app.preprocessing.units.folders import NoFilesError, files_below, local_path, without_markers
from dlrm_app.preprocessing.units.lake import NamedFile, is_table, partition_of, refuse_table, table_files
from dlrm_app.preprocessing.units.remote import (
    Address,
    RemoteFile,
    address_of,
    in_threads,
    is_url,
    look_at,
    objects_below,
    refuse_change,
)
from dlrm_app.text import without_credentials

_LOOK = 1 << 14
"""Bytes of text by which copies are recognized; smaller files are not compared."""
_SAMPLES, _SAMPLED = 16, 1 << 12
"""Blocks of a file that are compared at every call, and their bytes."""
_FOOTER = 1 << 19
"""Bytes that few footers are larger than."""
GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
MAX_RATIO = 20
"""Text is at most about so many times as large as its compressed file."""


@dataclass(frozen=True)
class Source:
    """An input file: its number among all of them, the split it feeds, and what tells whether it changes."""

    index: int
    path: str
    split: str
    bytes: int
    modified_ns: int
    format: str
    """text, gzip, zstd or parquet, by its first bytes."""
    partition: dict[str, str | None] = field(default_factory=dict, hash=False)
    """Key → value that all rows have: of the folders, as ``dt`` of clicks/dt=2026-11-22/part-0, or of a lake table."""
    tag: str = ""
    """What a store tells of the version of an object: its tag and date."""
    is_of_table: bool = False
    """True if a lake table names the file."""

    @property
    def is_compressed(self) -> bool:
        """True for text that can only be read from its beginning on."""
        return self.format in ("gzip", "zstd")

    @property
    def version(self) -> tuple[int, int, str]:
        """(bytes, date, tag): what changes when the file does."""
        return self.bytes, self.modified_ns, self.tag

    @property
    def end(self) -> tuple[int, int]:
        """The extent of the last bytes, among which the footer of a Parquet file mostly is."""
        return max(self.bytes - _FOOTER, 0), self.bytes

    def open(self, *extents: tuple[int, int]) -> Any:
        """The open file, unbuffered; ``extents`` of it are fetched ahead if it is an object of a store."""
        if isinstance(self.path, Address):
            return RemoteFile(self.path, (self.bytes, self.tag), extents)
        return Path(self.path).open("rb", buffering=0)

    def check_unchanged(self) -> None:
        """Raises DataError if the file is not as it was when the run began."""
        refuse_change(self.path, self.version, _version_of(self.path))


def _version_of(path: str) -> tuple[int, int, str]:
    if isinstance(path, Address):
        size, tag = look_at(path)
        return size, 0, tag
    status = Path(path).stat()
    return status.st_size, status.st_mtime_ns, ""


class _Problem(NamedTuple):
    """A fault of a name. ``is_absence``: nothing is there."""

    text: str
    is_absence: bool = False


def find_sources(given: InputConfig) -> list[Source]:
    """The files that input.train, input.val and input.test name, in that order; raises ConfigError with all faults."""
    sources = _find({f"input.{split}": getattr(given, split) for split in SPLITS})
    refuse_if(_copies(sources))
    return sources


def find_files(key: str, given: Any) -> list[Source]:
    """The files that setting ``key`` names, in order; raises ConfigError with all faults, NoFilesError if there are none."""
    return _find({key: given})


def _find(given: Mapping[str, Any]) -> list[Source]:
    problems: list[_Problem] = []
    named = [
        (key, file)
        for key, value in given.items()
        for name in ([value] if isinstance(value, str) else value or [])
        for file in _named_files(key, name, problems)
    ]
    looked = in_threads(lambda item: _look_at(item[0], *item[1]), list(enumerate(named)))
    problems += [problem for problem in looked if isinstance(problem, _Problem)]
    if problems:
        texts = [problem.text for problem in problems]
        raise NoFilesError(texts) if all(problem.is_absence for problem in problems) else ConfigError(texts)
    sources = [source for source in looked if isinstance(source, Source)]
    refuse_if(_named_twice(sources, [key for key, _ in named]))
    return sources


def _named_twice(sources: Sequence[Source], keys: Sequence[str]) -> list[str]:
    """A problem for each file that has two names among ``sources``, links included; ``keys``: what names each."""
    first: dict[tuple[object, object], Source] = {}
    problems = []
    for source in sources:
        if isinstance(source.path, Address):
            identity: tuple[object, object] = source.path.partition("://")[0], source.path.path
        else:
            status = Path(source.path).stat()
            identity = status.st_dev, status.st_ino
        if (known := first.setdefault(identity, source)) is not source:
            what = "are the same file (a glob such as 'day_[0-9]' names fewer files than 'day_*')"
            problems.append(_counts_twice(known, source, what, keys))
    return problems


def _copies(sources: Sequence[Source]) -> list[str]:
    """A problem for each file, of some length, whose text is that of another of them, plain or compressed."""
    keys = [f"input.{source.split}" for source in sources]
    beginnings = in_threads(_first_text, sources)
    alike = {text for text, number in Counter(beginnings).items() if number > 1 and len(text) == _LOOK}
    first: dict[str, Source] = {}
    return [
        _counts_twice(known, source, "hold the same text", keys)
        for source, text in zip(sources, beginnings, strict=True)
        if text in alike and (known := first.setdefault(content_checksum(source), source)) is not source
    ]


def _counts_twice(first: Source, second: Source, what: str, keys: Sequence[str]) -> str:
    names = " and ".join(f"{keys[source.index]}={source.path}" for source in (first, second))
    return f"{names} {what}: its rows would count twice, so name it once"


def _first_text(source: Source) -> bytes:
    with source.open() as raw, open_text(raw, source.format) as file, suppress(*_DAMAGE):
        return bytes(file.read(_LOOK))
    return b""  # damage is reported when the file is read


def content_checksum(source: Source) -> str:
    """``crc32:<hex>`` of the file's text, the same for a file and its .gz; of Parquet that of all bytes.

    Of a Parquet object of a store it is that of the footer; the store's tag tells its versions. Raises DamagedFileError.
    """
    crc, is_parquet = 0, source.format == "parquet"
    is_remote = isinstance(source.path, Address)
    extent = source.end if is_parquet and is_remote else (0, source.bytes)
    with source.open(extent) as raw, explained_damage(source):
        if is_parquet and is_remote:
            raw.seek(-8, os.SEEK_END)
            raw.seek(-8 - int.from_bytes(raw.read(4), "little"), os.SEEK_END)
            return f"footer-crc32:{isal_zlib.crc32(raw.read()):08x}"
        with open_text(raw, source.format) as text:  # all bytes, of Parquet
            while block := text.read(1 << 22):
                crc = isal_zlib.crc32(block, crc)
    return f"crc32:{crc:08x}"


def sample_checksum(source: Source) -> str:
    """``crc32:<hex>`` of some blocks of the file, evenly spread, the first and the last included; empty for an object of a store."""
    if isinstance(source.path, Address):
        return ""
    crc, last = 0, max(source.bytes - _SAMPLED, 0)
    with source.open() as raw:
        for number in range(_SAMPLES):
            raw.seek(last * number // (_SAMPLES - 1))
            crc = isal_zlib.crc32(raw.read(_SAMPLED), crc)
    return f"crc32:{crc:08x}"


class Known(Protocol):
    """A file as a manifest describes it."""

    @property
    def version(self) -> tuple[int, int, str]: ...
    @property
    def checksum(self) -> str: ...
    @property
    def sample(self) -> str: ...


def has_changed(source: Source, known: Known, *, reads_all: bool = False) -> bool:
    """True if the content of the file is not what it was.

    It is read if its size, date, tag or sampled bytes differ, or always if it ``reads_all``.
    """
    is_alike = source.version == known.version and sample_checksum(source) == known.sample
    return (reads_all or not is_alike) and content_checksum(source) != known.checksum


def _named_files(key: str, name: str, problems: list[_Problem]) -> list[NamedFile]:
    """The files behind ``name``: of a lake table, of a store, a file, a folder with all below it, or a glob of these.

    Files of a folder or glob are sorted so that day_2 comes before day_10; hidden, marker (_SUCCESS) and empty ones are left out.
    """
    name = local_path(name)
    try:
        if is_table(name):
            return table_files(key, name, _natural)
        paths, above = objects_below(name) if is_url(name) else files_below(name)
        data = without_markers(paths, above)
        if list(paths) != [above]:
            refuse_table(key, name, data, above)
    except ConfigError as error:
        texts = [text if text.startswith(f"{key}=") else f"{key}={name}: {text}" for text in error.problems]
        problems += [_Problem(text, isinstance(error, NoFilesError)) for text in texts]
        return []
    except DataError as error:
        problems.append(_Problem(f"{key}={error}"))
        return []
    if not data:
        text = f"{key}={without_credentials(name)} has no file to read (looked in {Path.cwd()})"
        problems.append(_Problem(text, is_absence=True))
    return [NamedFile(path, partition_of(path)) for path in sorted(data, key=_natural)]


def _natural(path: str) -> list[tuple[int, str]]:
    """A sort key by which numbers within names count as numbers."""
    pieces = re.findall("[0-9]+|[^0-9]", f"{path}\0")
    return [(int(piece) if piece.isascii() and piece.isdigit() else -1, piece) for piece in pieces]


def _look_at(index: int, key: str, file: NamedFile) -> Source | _Problem:
    """The source that is ``file``, named by setting ``key``, or what is wrong with it."""
    path = file.path
    try:
        if is_url(path) and not isinstance(path, Address):  # of a table
            path = address_of(path)
        if not isinstance(path, Address) and not Path(path).is_file():
            if not Path(path).exists():
                return _Problem(f"{key}={path}: no such file (looked in {Path.cwd()})", is_absence=True)
            cure = "write it to a file and give that"
            return _Problem(f"{key}={path} is a pipe or a device, and input is read more than once: {cure}")
        version = _version_of(path)
        split = key.partition(".")[2]
        source = Source(
            index, path, split, *version[:2], "text", file.partition, version[2], file.is_of_table
        )
        with source.open() as raw:
            return replace(source, format=format_of(raw.read(4)))
    except OSError as error:
        return _Problem(f"{key}={path} cannot be read: {error.strerror}")
    except DataError as error:
        return _Problem(f"{key}={error}")


def format_of(beginning: bytes) -> str:
    """The format of a file by its first 4 bytes."""
    magics = {PARQUET_MAGIC: "parquet", GZIP_MAGIC: "gzip", ZSTD_MAGIC: "zstd"}
    return next((name for magic, name in magics.items() if beginning.startswith(magic)), "text")


def other_input_problems(
    before: Mapping[str, tuple[int, int, str]], now: Sequence[Source], output: Path, state: str
) -> list[str]:
    """The differences between ``now`` and the input of the dataset in ``output``.

    before: path → (bytes, date, tag); ``state``: a description of ``output``.
    """
    new = {source.path: source.version for source in now}
    problems = [f"{path} was not part of the input before" for path in new if path not in before]
    problems += [f"{path} was part of the input before" for path in before if path not in new]
    problems += [
        f"{path} has changed: it had {before[path][0]:,} bytes, it has {new[path][0]:,} now"
        + ", of another date" * (before[path][0] == new[path][0])
        for path in sorted(before.keys() & new.keys())
        if before[path] != new[path]
    ]
    hint = f"{output} holds {state} of another input: give the same files, or another output=, or delete it to start again"
    return [*problems, hint] if problems else []


_DAMAGE: Any = (EOFError, OSError, isal_zlib.error, pa.ArrowException)


class DamagedFileError(DataError):
    """Source number ``source`` cannot be read to its end."""

    def __init__(self, message: str, source: int) -> None:
        super().__init__(message)
        self.message, self.source = message, source

    def __reduce__(self) -> Any:  # for workers of other processes
        return DamagedFileError, (self.message, self.source)


@contextmanager
def open_text(raw: Any, format: str) -> Iterator[Any]:
    """The text of the open file ``raw``: an object with ``readinto`` and ``read``."""
    if format == "zstd":
        with pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd") as file:
            yield file
    elif format == "gzip":
        with igzip.IGzipFile(fileobj=raw, mode="rb") as file:
            # its own readinto makes a copy on the way, that of the buffer in it does not
            yield getattr(file, "_buffer", file)
    else:
        yield raw


@contextmanager
def explained_damage(source: Source) -> Iterator[None]:
    """Raises DamagedFileError, which says what to do, for what is wrong with a compressed or Parquet file."""
    try:
        yield
    except _DAMAGE as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        if source.format == "parquet":
            fault = f"cannot be read as Parquet: {reason}"
        elif getattr(error, "errno", None) is not None:  # the disk's; Arrow and gzip call damage OSError too
            raise
        elif isinstance(error, EOFError) or "Truncated" in reason:
            fault = f"is cut short, or other bytes follow its {source.format} data"
        else:
            fault = f"is damaged: {reason}"
        raise DamagedFileError(f"{source.path} {fault}; copy or download it again", source.index) from error
