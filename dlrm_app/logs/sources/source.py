"""An input file: opens it, explains damage, and notices changes."""

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from isal import igzip, isal_zlib

from dlrm_app.errors import DataError, DlrmError, Problem, first_line, joined
from dlrm_app.logs.sources.quoted_breaks import Quoting, ReadableText, TextWithoutBreaks
from dlrm_app.logs.sources.remote_file import RemoteFile
from dlrm_app.logs.sources.store import (
    KEPT_EACH,
    Address,
    in_threads,
    object_version,
    refuse_change,
    versions_now,
)

_NUM_SAMPLES, _SAMPLE_BYTES = 16, 1 << 12
"""The number of blocks of a file that every call compares, and the bytes of each."""
_FOOTER = 1 << 19
"""The last bytes of a Parquet file, which hold most footers."""
MAX_RATIO = 20
"""About the largest ratio of a text's size to that of its compressed file."""


A = TypeVar("A")


@dataclass(frozen=True)
class InputFile:
    """An input file: its number among all files, the split that it belongs to, and the marks of its version."""

    index: int
    path: str
    split: str
    bytes: int
    modified_ns: int
    format: str
    """text, gzip, zstd or parquet, by the first bytes."""
    partition: dict[str, str | None] = field(default_factory=dict, hash=False)
    """Key → value of all rows: from folders, such as ``dt`` of clicks/dt=2026-11-22/part-0, or from a lake table."""
    tag: str = ""
    """The version of an object of a store: the tag and the date that the store reports."""
    is_of_table: bool = False
    """True if a lake table names the file."""
    quoting: Quoting | None = None
    """The quoting of a text whose quoted fields may hold line breaks."""

    @property
    def is_compressed(self) -> bool:
        """True for text in another form, which is longer."""
        return self.format in ("gzip", "zstd")

    @property
    def is_read_in_order(self) -> bool:
        """True for text that can only be read from its beginning."""
        return self.is_compressed or self.quoting is not None

    @property
    def text_ratio(self) -> int:
        """About the bytes of text for a byte of the file; also for Parquet."""
        return 1 if self.format == "text" else 4

    @property
    def text_bytes(self) -> int:
        """About the bytes of text that it holds."""
        return self.bytes * self.text_ratio

    @property
    def version(self) -> tuple[int, int, str]:
        """(bytes, date, tag): differs if the file has changed."""
        return self.bytes, self.modified_ns, self.tag

    @property
    def end(self) -> tuple[int, int]:
        """The extent of the last bytes, which usually hold the footer of a Parquet file."""
        return max(self.bytes - _FOOTER, 0), self.bytes

    def open(self, *extents: tuple[int, int], in_order: bool = False) -> io.RawIOBase:
        """Opens the file, unbuffered. For an object of a store, ``extents`` are fetched in the background.

        ``in_order``: True if nothing is read twice.
        """
        if isinstance(self.path, Address):
            return RemoteFile(self.path, (self.bytes, self.tag), extents, in_order=in_order)
        return Path(self.path).open("rb", buffering=0)


def version_of(path: str) -> tuple[int, int, str]:
    """(bytes, date, tag) of a file or an object of a store."""
    if isinstance(path, Address):
        size, tag = object_version(path)
        return size, 0, tag
    status = Path(path).stat()
    return status.st_size, status.st_mtime_ns, ""


def each_source(act: Callable[[InputFile], A], sources: Sequence[InputFile]) -> list[A]:
    """The results of ``act`` for each source, in order. Raises one error with the problems of all.

    Sources in a store are handled in threads; for others threads would take longer.
    """

    def attempt(source: InputFile) -> A | DlrmError:
        try:
            return act(source)
        except DlrmError as error:
            return error

    is_far = any(
        isinstance(it.path, Address) and len(it.path.beginning) < min(it.bytes, KEPT_EACH) for it in sources
    )
    done = in_threads(attempt, sources) if is_far else [*map(attempt, sources)]
    if errors := [each for each in done if isinstance(each, DlrmError)]:
        raise joined(errors)
    return [each for each in done if not isinstance(each, DlrmError)]


def drop_beginnings(sources: Sequence[InputFile]) -> None:
    """Frees the first bytes of objects that are longer, because these are fetched again with the rest."""
    for source in sources:
        if isinstance(source.path, Address) and len(source.path.beginning) < source.bytes:
            source.path.beginning = b""


def check_unchanged(sources: Sequence[InputFile]) -> None:
    """Raises DataError if a file has changed since the run began."""
    addresses = [source.path for source in sources if isinstance(source.path, Address)]
    now = dict[str, tuple[int, str]](zip(addresses, versions_now(addresses), strict=True))
    for source in sources:
        found = now.get(source.path)
        refuse_change(
            source.path, source.version, (found[0], 0, found[1]) if found else version_of(source.path)
        )


def content_checksum(source: InputFile) -> str:
    """``crc32:<hex>`` of the file's text, the same for a file and its .gz; for Parquet, of all bytes.

    For a Parquet object of a store, of the footer alone: the store's tag tells versions apart. Raises DamagedFileError.
    """
    crc, is_parquet = 0, source.format == "parquet"
    is_remote = isinstance(source.path, Address)
    extent = source.end if is_parquet and is_remote else (0, source.bytes)
    with source.open(extent) as raw, explained_damage(source):
        if is_parquet and is_remote:
            raw.seek(-8, os.SEEK_END)
            raw.seek(-8 - int.from_bytes(raw.read(4), "little"), os.SEEK_END)
            return f"footer-crc32:{isal_zlib.crc32(raw.read()):08x}"
        with open_text(raw, source) as text:  # all bytes, of Parquet
            while block := text.read(1 << 22):
                crc = isal_zlib.crc32(block, crc)
    return f"crc32:{crc:08x}"


def sample_checksum(source: InputFile) -> str:
    """``crc32:<hex>`` of some blocks of the file, evenly spread, the first and the last included.

    Empty for an object of a store.
    """
    if isinstance(source.path, Address):
        return ""
    crc, last = 0, max(source.bytes - _SAMPLE_BYTES, 0)
    with source.open() as raw:
        for number in range(_NUM_SAMPLES):
            raw.seek(last * number // (_NUM_SAMPLES - 1))
            crc = isal_zlib.crc32(raw.read(_SAMPLE_BYTES), crc)
    return f"crc32:{crc:08x}"


class KnownFile(Protocol):
    """A file as described in a manifest."""

    @property
    def version(self) -> tuple[int, int, str]: ...
    @property
    def checksum(self) -> str: ...
    @property
    def sample(self) -> str: ...


def has_changed(source: InputFile, known: KnownFile, *, reads_all: bool = False) -> bool:
    """True if the content of the file has changed.

    All of it is read if its size, date, tag or sampled bytes differ, or with ``reads_all``.
    """
    is_alike = source.version == known.version and sample_checksum(source) == known.sample
    return (reads_all or not is_alike) and content_checksum(source) != known.checksum


def other_input_problems(
    before: Mapping[str, tuple[int, int, str]], now: Sequence[InputFile], output: Path, state: str
) -> list[Problem]:
    """The differences between ``now`` and the input of the dataset in ``output``.

    before: path → (bytes, date, tag); ``state``: a description of ``output``.
    """
    new = {source.path: source.version for source in now}
    problems = [Problem(path, "was not part of the input before") for path in new if path not in before]
    problems += [Problem(path, "was part of the input before") for path in before if path not in new]
    problems += [
        Problem(
            path,
            f"has changed, it had {before[path][0]:,} bytes, it has {new[path][0]:,} now"
            + ", of another date" * (before[path][0] == new[path][0]),
        )
        for path in sorted(before.keys() & new.keys())
        if before[path] != new[path]
    ]
    cure = "give the same files, or another output=, or delete it to start again"
    hint = Problem(f"output={output}", f"holds {state} of another input", cure)
    return [*problems, hint] if problems else []


# Any: isal's stub declares its error as an instance
DAMAGE: Any = (EOFError, OSError, isal_zlib.error, pa.ArrowException)


class DamagedFileError(DataError):
    """Raised if source number ``source`` cannot be read to its end."""

    def __init__(self, problem: Problem | str, source: int = 0) -> None:
        super().__init__(problem)
        self.source = source


@contextmanager
def open_text(raw: io.RawIOBase, source: InputFile) -> Iterator[ReadableText]:
    """Opens the text of ``source``, whose open file is ``raw``, with its line breaks within quotes hidden."""
    with _decompressed(raw, source.format) as file:
        yield file if source.quoting is None else TextWithoutBreaks(file, source.quoting, source.path)


@contextmanager
def _decompressed(raw: io.RawIOBase, format: str) -> Iterator[ReadableText]:
    if format == "zstd":
        with pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd") as file:
            yield file
    elif format == "gzip":
        with igzip.IGzipFile(fileobj=raw, mode="rb") as file:
            # the readinto of the buffer inside copies once less
            yield getattr(file, "_buffer", file)
    else:
        yield raw


@contextmanager
def explained_damage(source: InputFile) -> Iterator[None]:
    """Raises DamagedFileError, with a cure, for errors of a compressed or Parquet file."""
    try:
        yield
    except DAMAGE as error:
        reason = first_line(error)
        if source.format == "parquet":
            fault = f"cannot be read as Parquet: {reason}"
        # an error of the disk has a number; Arrow and gzip raise OSError without one for damage
        elif getattr(error, "errno", None) is not None:
            raise
        elif isinstance(error, EOFError) or "Truncated" in reason:
            fault = f"is cut short, or other bytes follow its {source.format} data"
        else:
            fault = f"is damaged: {reason}"
        cure = "copy or download it again"
        raise DamagedFileError(Problem(source.path, fault, cure), source.index) from error
