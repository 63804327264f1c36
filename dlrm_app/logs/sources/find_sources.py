"""The input files that users name by paths, globs, lists and lake tables; each file may be named once."""

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dlrm_app.config.datasets import InputConfig
from dlrm_app.config.values import SPLITS
from dlrm_app.errors import ConfigError, DataError, Problem, refuse_if
from dlrm_app.logs.sources.file_kinds import NUM_BYTES, format_of_beginning
from dlrm_app.logs.sources.folders import NoFilesError, files_below, local_path, without_markers
from dlrm_app.logs.sources.lake import NamedFile, is_table, partition_of, refuse_table, table_files
from dlrm_app.logs.sources.quoted_breaks import Quoting
from dlrm_app.logs.sources.source import DAMAGE, InputFile, content_checksum, open_text, version_of
from dlrm_app.logs.sources.store import (
    Address,
    address_of,
    in_threads,
    is_url,
    keep_beginnings,
    objects_below,
)
from dlrm_app.text import listed, without_credentials

logger = logging.getLogger(__name__)

_LOOK = 1 << 14
"""Bytes of text that are compared to find copies; smaller files are not compared."""


class _NameFault(NamedTuple):
    """A problem of a name. ``is_absence``: True if there is no file."""

    problem: Problem
    is_absence: bool = False


def find_sources(given: InputConfig, quoting: Quoting | None = None) -> list[InputFile]:
    """The files that input.train, input.val and input.test name, in that order.

    ``quoting``: that of texts with line breaks within quotes. Raises ConfigError with every problem.
    """
    sources = _find({f"input.{split}": getattr(given, split) for split in SPLITS}, quoting)
    refuse_if(_copies(sources))
    return sources


def find_files(key: str, given: object, quoting: Quoting | None = None) -> list[InputFile]:
    """The files that setting ``key`` names, in order.

    ``quoting``: that of texts with line breaks within quotes. Raises ConfigError with every problem, NoFilesError if
    there are no files.
    """
    return _find({key: given}, quoting)


def _find(given: Mapping[str, Any], quoting: Quoting | None) -> list[InputFile]:
    faults: list[_NameFault] = []
    named = [
        (key, file)
        for key, value in given.items()
        for name in ([value] if isinstance(value, str) else value or [])
        for file in _named_files(key, name, faults)
    ]
    keys = [key for key, _ in named]
    looked = in_threads(lambda item: _source_of(item[0], *item[1]), list(enumerate(named)))
    found = [source for source in looked if isinstance(source, InputFile)]
    versions = {it.path: (it.bytes, it.tag) for it in found if isinstance(it.path, Address)}
    keep_beginnings(versions)
    read = in_threads(lambda source: _with_format(keys[source.index], source), found)
    faults += [fault for fault in [*looked, *read] if isinstance(fault, _NameFault)]
    if faults:
        problems = [fault.problem for fault in faults]
        raise NoFilesError(*problems) if all(fault.is_absence for fault in faults) else ConfigError(*problems)
    sources = [source for source in read if isinstance(source, InputFile)]
    refuse_if(_named_twice(sources, keys))
    return [it if it.format == "parquet" else replace(it, quoting=quoting) for it in sources]


def _named_twice(sources: Sequence[InputFile], keys: Sequence[str]) -> list[Problem]:
    """A problem for each file that is named twice, also through a link.

    ``keys``: the setting that names each source.
    """
    first: dict[tuple[object, object], InputFile] = {}
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


def _copies(sources: Sequence[InputFile]) -> list[Problem]:
    """A problem for each file with the same text as another one, plain or compressed. Short files are not compared."""
    keys = [f"input.{source.split}" for source in sources]
    beginnings = in_threads(_first_text, sources)
    repeated = {text for text, number in Counter(beginnings).items() if number > 1 and len(text) == _LOOK}
    first: dict[str, InputFile] = {}
    return [
        _counts_twice(earlier, source, "hold the same text", keys)
        for source, text in zip(sources, beginnings, strict=True)
        if text in repeated and (earlier := first.setdefault(content_checksum(source), source)) is not source
    ]


def _counts_twice(first: InputFile, second: InputFile, what: str, keys: Sequence[str]) -> Problem:
    one, other = (f"{keys[source.index]}={source.path}" for source in (first, second))
    return Problem(one, f"and {other} {what}", "its rows would count twice, so name it once")


def _first_text(source: InputFile, size: int = _LOOK) -> bytes:
    with source.open() as raw, open_text(raw, source) as file, suppress(*DAMAGE):
        return bytes(file.read(size))
    return b""  # damage is reported when the file is read


def _named_files(key: str, name: str, faults: list[_NameFault]) -> list[NamedFile]:
    """The files that ``name`` means: a lake table, objects of a store, a file, a folder with all below it, or a glob.

    The files of a folder or glob are sorted so that day_2 comes before day_10. Empty files and those that other
    programs leave beside the data are left out, with a log line. Adds to ``faults``.
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
        found = [
            each if each.key.startswith(f"{key}=") else each.within(f"{key}={name}")
            for each in error.problems
        ]
        faults += [_NameFault(each, isinstance(error, NoFilesError)) for each in found]
        return []
    except DataError as error:
        faults += [_NameFault(each.within(key, "=")) for each in error.problems]
        return []
    others = sorted({*paths} - {*data}, key=_natural)
    if others and data:
        shown = listed([path.removeprefix(above).lstrip("/") for path in others], 4)
        logger.info(f"{key}={without_credentials(name)}: left out by their names: {shown}")
    if not data:
        but = f", but for {listed(others, 4)}" * bool(others)
        rule = f"has no file to read{but} (looked in {Path.cwd()})"
        faults.append(_NameFault(Problem(f"{key}={without_credentials(name)}", rule), is_absence=True))
    return [NamedFile(path, partition_of(path)) for path in sorted(data, key=_natural)]


def _natural(path: str) -> list[tuple[int, str]]:
    """A sort key that compares numbers within names as numbers."""
    pieces = re.findall("[0-9]+|[^0-9]", f"{path}\0")
    return [(int(piece) if piece.isascii() and piece.isdigit() else -1, piece) for piece in pieces]


def _source_of(index: int, key: str, file: NamedFile) -> InputFile | _NameFault:
    """The source for ``file``, which setting ``key`` names, before its format is known; or its problem."""
    path = file.path
    try:
        if is_url(path) and not isinstance(path, Address):  # from a table
            path = address_of(path)
        if not isinstance(path, Address) and not Path(path).is_file():
            if not Path(path).exists():
                rule = f"does not exist (looked in {Path.cwd()})"
                return _NameFault(Problem(f"{key}={path}", rule), is_absence=True)
            rule = "is a pipe or a device, and input is read more than once"
            return _NameFault(Problem(f"{key}={path}", rule, "write it to a file and give that"))
        size, modified, tag = version_of(path)
    except DataError as error:
        return _NameFault(error.problems[0].within(key, "="))
    split = key.partition(".")[2]
    return InputFile(index, path, split, size, modified, "text", file.partition, tag, file.is_of_table)


def _with_format(key: str, source: InputFile) -> InputFile | _NameFault:
    """``source`` with the format that its first bytes tell, or its problem."""
    try:
        with source.open() as raw:
            beginning = raw.read(NUM_BYTES)
        format, other = format_of_beginning(
            beginning, lambda format: _first_text(replace(source, format=format), NUM_BYTES)
        )
    except OSError as error:
        return _NameFault(Problem(f"{key}={source.path}", f"cannot be read ({error.strerror})"))
    except DataError as error:
        return _NameFault(error.problems[0].within(key, "="))
    if other is not None:
        return _NameFault(Problem(f"{key}={source.path}", f"is {other.what}", other.cure))
    return replace(source, format=format)
