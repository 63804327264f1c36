"""What has been done: one small file for each unit of work, written whole once the unit's results are in place.

OUTPUT/.work/plan.json                  the configuration and input that the work belongs to
OUTPUT/.work/<pass>/00000-000012.json   what unit 12 of source 0 gave
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlrm_app.errors import DataError, DlrmError
from dlrm_app.files import give_name, sync_folder, temporary_name, write_json

Result = dict[str, Any]
"""What a unit tells of itself, as JSON."""

WORK = ".work"
UNKNOWN_BYTES = -1
"""The size of a source that may be replaced."""


@dataclass(frozen=True)
class Journal:
    """The results of one pass over the units. Picklable; any process that shares the folder may write."""

    folder: Path

    def path(self, source: int, unit: int, suffix: str) -> Path:
        """Where a file of a unit lies, whether it is there or not."""
        return self.folder / f"{source:05d}-{unit:06d}{suffix}"

    def land(self, source: int, unit: int, result: dict[str, Any]) -> None:
        """Records that the unit is done; its files must be under their final names."""
        write_json(self.path(source, unit, ".json"), result)

    def unit(self, source: int, unit: int) -> "Unit":
        return Unit(self, source, unit)

    def load(self, source: int, unit: int) -> dict[str, Any]:
        path = self.path(source, unit, ".json")
        try:
            value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(
                f"{path} is damaged ({error}): delete it and run the same command again"
            ) from error
        return value

    def forget(self, source: int) -> None:
        """Deletes what has landed of a source."""
        for path in self.folder.glob(f"{source:05d}-*"):
            path.unlink()

    def done_units(self, source: int) -> list[int]:
        """The units of ``source`` that have landed, in order."""
        prefix = f"{source:05d}-"
        names = [path.name for path in self.folder.glob(f"{prefix}*.json")]
        return sorted(int(name[len(prefix) : -len(".json")]) for name in names)


class Unit:
    """What one unit of work leaves behind: files under temporary names, until it lands.

    Landing waits for the disk, so it may be left to a thread that has no work to do.
    """

    def __init__(self, journal: Journal, source: int, unit: int) -> None:
        self._journal, self._place = journal, (source, unit)
        self._written: list[tuple[Path, Path]] = []

    @contextmanager
    def write(self, suffix: str) -> Iterator[Path]:
        """Gives the name of a file to write; it is kept if the block ends well."""
        path = self._journal.path(*self._place, suffix)
        temporary = temporary_name(path)
        try:
            yield temporary
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._written.append((temporary, path))

    def land(self, result: Result) -> Result:
        """Gives the files their names, then records that the unit is done."""
        for temporary, path in self._written:
            give_name(temporary, path)
        if self._written:
            sync_folder(self._journal.folder)
        self._journal.land(*self._place, result)
        return result


def open_journal(output: Path, name: str) -> Journal:
    """The journal of pass ``name``, begun or gone on with."""
    folder = output / WORK / name
    folder.mkdir(parents=True, exist_ok=True)
    return Journal(folder)


def passes_over(output: Path, source: int) -> set[Path]:
    """The folders of the passes in which something has landed of a source."""
    return {path.parent for path in (output / WORK).glob(f"*/{source:05d}-*")}


def plan_path(output: Path) -> Path:
    """Where the configuration and input stand that OUTPUT/.work belongs to."""
    return output / WORK / "plan.json"


def expect_another_file(output: Path, source: int) -> None:
    """Notes that a source was damaged, so that the run goes on with a file of another size in its place."""
    plan = json.loads(plan_path(output).read_text(encoding="utf-8"))
    plan["sources"][source]["bytes"] = UNKNOWN_BYTES
    write_json(plan_path(output), plan)


@contextmanager
def locked(output: Path) -> Iterator[None]:
    """Holds OUTPUT for this process; the lock goes when the process does, however it ends."""
    (output / WORK).mkdir(parents=True, exist_ok=True)
    with (output / WORK / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DlrmError(
                f"another dlrm-preprocess is working on output={output}: wait for it or end it"
            ) from error
        yield
