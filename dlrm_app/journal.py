"""A list of finished work on disk, by which a command that was interrupted continues where it stopped.

    FOLDER/<name>.json      the record of a piece of work, written once its files have their final names
    FOLDER/<name><suffix>   one of its files

Work without a record is done again. Names sort in the order of the work; ``numbered`` makes such names.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from dlrm_app.files import rename_synced, sync_folder, temporary_name, write_json
from dlrm_app.records import read_record

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")
"""The record of a piece of work: a frozen dataclass."""
Finish = Callable[[], R]
"""The end of a piece of work: waits for the disk and returns the record."""

RECORD = ".json"
"""The suffix of the record of a piece of work."""
REPEAT = "then run the same command again; it continues where it stopped"
"""What to do once the cause of an interruption is gone."""


@dataclass(frozen=True)
class Journal(Generic[R]):
    """The finished work in ``folder``. Picklable; any process that shares the folder may add to it."""

    folder: Path
    record: type[R]

    def create(self) -> "Journal[R]":
        """Makes the folder if it does not exist; returns the journal."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def path(self, name: str, suffix: str) -> Path:
        """The path of a file of work ``name``; the file need not exist."""
        return self.folder / f"{name}{suffix}"

    def done(self) -> list[str]:
        """The names of finished work, in order."""
        return sorted(path.name.removesuffix(RECORD) for path in self.folder.glob(f"*{RECORD}"))

    def is_done(self, name: str) -> bool:
        return self.path(name, RECORD).is_file()

    def load(self, name: str) -> R:
        """The record of finished work. Raises DataError if it is damaged."""
        cure = "delete it and run the same command again"
        return read_record(self.path(name, RECORD), self.record, cure)

    def begin(self, name: str) -> "WorkFiles[R]":
        """Begins work ``name``, which may have been interrupted before."""
        return WorkFiles(self, name)

    def commit(self, name: str, record: R) -> None:
        """Records that work ``name`` is finished; its files must have their final names."""
        write_json(self.path(name, RECORD), asdict(record))

    def forget(self, name: str) -> None:
        for path in self.folder.glob(f"{name}.*"):
            path.unlink()


class WorkFiles(Generic[R]):
    """The files of one piece of work; they have temporary names until it is finished."""

    def __init__(self, journal: Journal[R], name: str) -> None:
        self._journal, self._name = journal, name
        self._written: list[tuple[Path, Path]] = []

    @contextmanager
    def write(self, suffix: str) -> Iterator[Path]:
        """Yields the name of a file to write; the file is kept if the block succeeds."""
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
        return self._journal.path(self._name, suffix)

    def finish(self, record: R) -> Finish[R]:
        """The rest of the work. It waits for the disk, so another thread may call it."""
        return partial(self._commit, record)

    def _commit(self, record: R) -> R:
        """Gives the files their final names, then records that the work is finished."""
        for temporary, path in self._written:
            rename_synced(temporary, path)
        if self._written:
            sync_folder(self._journal.folder)
        self._journal.commit(self._name, record)
        return record


def numbered(*numbers: int) -> str:
    """A name made of numbers, such as 0000003-0000012; such names sort as the numbers do, up to ten million."""
    return "-".join(f"{number:07d}" for number in numbers)
