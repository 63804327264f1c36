"""Input files, and the names, globs and lists that users give for them."""

import glob
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlrm_app.config.preprocess import SPLITS, InputConfig
from dlrm_app.errors import ConfigError, DataError, refuse_if

_LOOK = 1 << 14
"""Bytes of text by which copies are told; a file with fewer is not looked at."""
GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Source:
    """An input file: its number among all of them, the split it feeds, and what tells whether it changes."""

    index: int
    path: str
    split: str
    bytes: int
    modified_ns: int
    is_gzip: bool

    def check_unchanged(self) -> None:
        """Raises DataError if the file is not as it was when the run began."""
        now = Path(self.path).stat()
        if (now.st_size, now.st_mtime_ns) != (self.bytes, self.modified_ns):
            raise DataError(
                f"{self.path} changed while it was being read ({self.bytes:,} bytes before, {now.st_size:,} now): "
                "delete the output and preprocess again once nothing writes to it"
            )


def find_sources(given: InputConfig) -> list[Source]:
    """The files that input.train, input.val and input.test name, in that order; raises ConfigError with all faults."""
    problems: list[str] = []
    sources: list[Source] = []
    for split in SPLITS:
        for path in _expand(f"input.{split}", getattr(given, split), problems):
            source = _look_at(f"input.{split}", path, split, len(sources), problems)
            if source is not None:
                sources.append(source)
    refuse_if(problems + _named_twice(sources))
    return sources


def find_files(key: str, given: Any) -> list[Source]:
    """The files that setting ``key`` names, in order; raises ConfigError with all faults."""
    problems: list[str] = []
    sources: list[Source] = []
    for path in _expand(key, given, problems):
        source = _look_at(key, path, "", len(sources), problems)
        if source is not None:
            sources.append(source)
    refuse_if(problems)
    return sources


def _named_twice(sources: Sequence[Source]) -> list[str]:
    """A problem for each file that has two names among ``sources``, links included."""
    first: dict[tuple[int, int], Source] = {}
    problems = []
    for source in sources:
        status = Path(source.path).stat()
        known = first.setdefault((status.st_dev, status.st_ino), source)
        if known is not source:
            problems.append(
                f"input.{known.split}={known.path} and input.{source.split}={source.path} are the same file: "
                "its rows would count twice, so name it once (a glob such as 'day_[0-9]' names fewer files than 'day_*')"
            )
    return problems or _copies(sources)


def _copies(sources: Sequence[Source]) -> list[str]:
    """A problem for each file whose text is that of another of them, plain or compressed, as far as a look can tell."""
    first: dict[tuple[int, bytes], Source] = {}
    problems = []
    for source in sources:
        text = _first_text(source)
        known = first.setdefault((_text_bytes(source), text), source) if len(text) == _LOOK else source
        if known is not source:
            problems.append(
                f"input.{known.split}={known.path} and input.{source.split}={source.path} hold the same text "
                f"(as many bytes, and the same first {_LOOK:,}): its rows would count twice, so name one of them"
            )
    return problems


def _first_text(source: Source) -> bytes:
    with Path(source.path).open("rb") as file:
        if not source.is_gzip:
            return file.read(_LOOK)
        try:
            return zlib.decompressobj(wbits=31).decompress(file.read(2 * _LOOK), _LOOK)
        except zlib.error:  # told with its place when it is read
            return b""


def _text_bytes(source: Source) -> int:
    """Modulo 2^32, which is what gzip notes at the end of a file; of several gzip members the last alone."""
    with Path(source.path).open("rb") as file:
        if not source.is_gzip:
            return source.bytes % 2**32
        file.seek(-4, os.SEEK_END)
        return int.from_bytes(file.read(4), "little")


def _expand(key: str, value: Any, problems: list[str]) -> Sequence[str]:
    """The paths behind ``value``; those of a glob are sorted so that day_2 comes before day_10."""
    paths: list[str] = []
    for name in [value] if isinstance(value, str) else value or []:
        if Path(name).exists() or not glob.has_magic(name):
            paths.append(name)
        else:
            matches = sorted(glob.glob(name), key=_natural)  # noqa: PTH207  # Path.glob refuses absolute patterns
            if not matches:
                problems.append(f"{key}={name} matches no file (looked in {Path.cwd()})")
            paths += [path for path in matches if not path.endswith(".best.json")]
    return paths


def _natural(path: str) -> list[tuple[int, str]]:
    """A sort key by which numbers within names count as numbers."""
    pieces = re.findall("[0-9]+|[^0-9]", f"{path}\0")
    return [(int(piece) if piece.isascii() and piece.isdigit() else -1, piece) for piece in pieces]


def _look_at(key: str, path: str, split: str, index: int, problems: list[str]) -> Source | None:
    if not Path(path).exists():
        problems.append(f"{key}={path}: no such file (looked in {Path.cwd()})")
        return None
    if Path(path).is_dir():
        problems.append(f"{key}={path} is a folder: give its files, such as '{path}/*'")
        return None
    if not Path(path).is_file():
        problems.append(
            f"{key}={path} is a pipe or a device, and input is read more than once: "
            "write it to a file (plain or gzip) and give that"
        )
        return None
    try:
        with Path(path).open("rb") as file:
            is_gzip = file.read(2) == GZIP_MAGIC
            status = os.fstat(file.fileno())
    except OSError as error:
        problems.append(f"{key}={path} cannot be read: {error.strerror}")
        return None
    return Source(index, path, split, status.st_size, status.st_mtime_ns, is_gzip)


def refuse_other_input(
    before: Sequence[Source], now: Sequence[Source], damaged: Sequence[str], output: Path, state: str
) -> None:
    """Raises ConfigError if the input is not that of the dataset in ``output``, saying what is different.

    Files whose paths are in ``damaged`` may have been replaced. ``state``: what ``output`` holds.
    """
    new = {source.path: source for source in now}
    before = [new.get(source.path, source) if source.path in damaged else source for source in before]
    old = {source.path: source for source in before}
    problems = [f"{path} was not part of the input before" for path in new if path not in old]
    problems += [f"{path} was part of the input before" for path in old if path not in new]
    for path in old.keys() & new.keys():
        if (old[path].bytes, old[path].modified_ns) != (new[path].bytes, new[path].modified_ns):
            problems.append(
                f"{path} has changed: it had {old[path].bytes:,} bytes, it has {new[path].bytes:,} now"
                + ", of another date" * (old[path].bytes == new[path].bytes)
            )
    if problems:
        hint = f"{output} holds {state} of another input: give the same files, or another output=, or delete it to start again"
        raise ConfigError([*problems, hint])
