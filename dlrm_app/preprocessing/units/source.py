"""An input file: how it is read, which damage it has, and whether it changes."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from isal import igzip, isal_zlib

from dlrm_app.dataset.parquet import MAGIC as PARQUET_MAGIC
from dlrm_app.errors import DataError
from dlrm_app.preprocessing.units.remote import Address, RemoteFile, look_at, refuse_change

_SAMPLES, _SAMPLED = 16, 1 << 12
"""Blocks of a file that are compared at every call, and their bytes."""
_FOOTER = 1 << 19
"""Bytes that few footers are larger than."""
GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
MAX_RATIO = 20
"""Text is at most about so many times as large as its compressed file."""


@dataclass(frozen=True)
class InputFile:
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
        refuse_change(self.path, self.version, version_of(self.path))


def version_of(path: str) -> tuple[int, int, str]:
    if isinstance(path, Address):
        size, tag = look_at(path)
        return size, 0, tag
    status = Path(path).stat()
    return status.st_size, status.st_mtime_ns, ""


def content_checksum(source: InputFile) -> str:
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


def sample_checksum(source: InputFile) -> str:
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


def has_changed(source: InputFile, known: Known, *, reads_all: bool = False) -> bool:
    """True if the content of the file is not what it was.

    It is read if its size, date, tag or sampled bytes differ, or always if it ``reads_all``.
    """
    is_alike = source.version == known.version and sample_checksum(source) == known.sample
    return (reads_all or not is_alike) and content_checksum(source) != known.checksum


def format_of(beginning: bytes) -> str:
    """The format of a file by its first 4 bytes."""
    magics = {PARQUET_MAGIC: "parquet", GZIP_MAGIC: "gzip", ZSTD_MAGIC: "zstd"}
    return next((name for magic, name in magics.items() if beginning.startswith(magic)), "text")


def other_input_problems(
    before: Mapping[str, tuple[int, int, str]], now: Sequence[InputFile], output: Path, state: str
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


DAMAGE: Any = (EOFError, OSError, isal_zlib.error, pa.ArrowException)


class DamagedFileError(DataError):
    """Raised if source number ``source`` cannot be read to its end."""

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
def explained_damage(source: InputFile) -> Iterator[None]:
    """Raises DamagedFileError, which says what to do, for what is wrong with a compressed or Parquet file."""
    try:
        yield
    except DAMAGE as error:
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
