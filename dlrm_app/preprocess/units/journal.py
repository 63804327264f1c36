"""What has been done: one small file for each unit of work, written whole once the unit's results are in place.

OUTPUT/.work/<pass>/00000-000012.json   the record of unit 12 of source 0
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from dlrm_app.errors import DataError
from dlrm_app.files import give_name, sync_folder, temporary_name, write_json
from dlrm_app.records import from_json

R = TypeVar("R")
"""The record of a pass: a frozen dataclass."""


@dataclass(frozen=True)
class Journal(Generic[R]):
    """The records of one pass over the units. Picklable; any process that shares the folder may write."""

    folder: Path
    record: type[R]

    def path(self, source: int, unit: int, suffix: str) -> Path:
        """Where a file of a unit lies, whether it is there or not."""
        return self.folder / f"{source:05d}-{unit:06d}{suffix}"

    def land(self, source: int, unit: int, record: R) -> None:
        """Records that the unit is done; its files must be under their final names."""
        write_json(self.path(source, unit, ".json"), asdict(record))  # type: ignore[call-overload]  # a dataclass

    def unit(self, source: int, unit: int) -> "Unit[R]":
        return Unit(self, source, unit)

    def load(self, source: int, unit: int) -> R:
        path = self.path(source, unit, ".json")
        try:
            return from_json(self.record, json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise DataError(
                f"{path} is damaged ({error}): delete it and run the same command again"
            ) from error

    def forget(self, source: int) -> None:
        """Deletes what has landed of a source."""
        for path in self.folder.glob(f"{source:05d}-*"):
            path.unlink()

    def done_units(self, source: int) -> list[int]:
        """The units of ``source`` that have landed, in order."""
        prefix = f"{source:05d}-"
        names = [path.name for path in self.folder.glob(f"{prefix}*.json")]
        return sorted(int(name[len(prefix) : -len(".json")]) for name in names)


class Unit(Generic[R]):
    """What one unit of work leaves behind: files under temporary names, until it lands."""

    def __init__(self, journal: Journal[R], source: int, unit: int) -> None:
        self._journal, self._source, self._unit = journal, source, unit
        self._written: list[tuple[Path, Path]] = []

    @contextmanager
    def write(self, suffix: str) -> Iterator[Path]:
        """Gives the name of a file to write; it is kept if the block ends well."""
        path = self.path(suffix)
        temporary = temporary_name(path)
        try:
            yield temporary
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._written.append((temporary, path))

    def path(self, suffix: str) -> Path:
        """The final name of a file."""
        return self._journal.path(self._source, self._unit, suffix)

    def finish(self, record: R) -> Callable[[], R]:
        """What is left to do, and gives the record: it waits for the disk, so a thread without work may do it."""
        return partial(self._land, record)

    def _land(self, record: R) -> R:
        """Gives the files their names, then records that the unit is done."""
        for temporary, path in self._written:
            give_name(temporary, path)
        if self._written:
            sync_folder(self._journal.folder)
        self._journal.land(self._source, self._unit, record)
        return record
