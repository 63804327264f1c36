"""OUTPUT/.work: the finished work of a run, kept until its dataset is complete.

OUTPUT/.work/plan.json                 the configuration and input that the work belongs to
OUTPUT/.work/<pass>/00000-000012.json  the record of unit 12 of source 0, written once its results are in place
OUTPUT/.work/lock                      held by the working process
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from dlrm_app.errors import ConfigError, DataError
from dlrm_app.files import (
    code_checksum,
    held_lock,
    is_file,
    rename_synced,
    sync_folder,
    temporary_name,
    write_json,
)
from dlrm_app.preprocessing.units.source import Source
from dlrm_app.records import from_json

WORK = ".work"
R = TypeVar("R")
"""The record of a pass: a frozen dataclass."""


@dataclass(frozen=True)
class Journal(Generic[R]):
    """The records of one pass over the units. Picklable; any process that shares the folder may write."""

    folder: Path
    record: type[R]

    def path(self, source: int, unit: int, suffix: str) -> Path:
        """The path of a file of a unit; the file need not exist."""
        return self.folder / f"{source:05d}-{unit:06d}{suffix}"

    def commit(self, source: int, unit: int, record: R) -> None:
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
        """Deletes the finished work of a source."""
        for path in self.folder.glob(f"{source:05d}-*"):
            path.unlink()

    def done_units(self, source: int) -> list[int]:
        """The finished units of ``source``, in order."""
        prefix = f"{source:05d}-"
        names = [path.name for path in self.folder.glob(f"{prefix}*.json")]
        return sorted(int(name[len(prefix) : -len(".json")]) for name in names)


class Unit(Generic[R]):
    """The files of one unit of work; they have temporary names until the unit is finished."""

    def __init__(self, journal: Journal[R], source: int, unit: int) -> None:
        self._journal, self._source, self._unit = journal, source, unit
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
        return self._journal.path(self._source, self._unit, suffix)

    def finish(self, record: R) -> Callable[[], R]:
        """The rest of the unit's work, which returns the record. It waits for the disk, so another thread may do it."""
        return partial(self._commit, record)

    def _commit(self, record: R) -> R:
        """Gives the files their final names, then records that the unit is done."""
        for temporary, path in self._written:
            rename_synced(temporary, path)
        if self._written:
            sync_folder(self._journal.folder)
        self._journal.commit(self._source, self._unit, record)
        return record


def landed_passes(output: Path, source: int | None = None) -> set[str]:
    """The passes with finished units, of one source or of any."""
    files = "*.json" if source is None else f"{source:05d}-*.json"
    return {path.parent.name for path in (output / WORK).glob(f"*/{files}")}


@cache
def own_code() -> str:
    """The checksum of the code that decides a dataset's bytes: dlrm_app/preprocessing/ and dlrm_app/dataset/."""
    package = Path(__file__).resolve().parents[2]
    return code_checksum(package / "preprocessing") + code_checksum(package / "dataset")


@dataclass(frozen=True)
class RunRecord:
    """The configuration and input of a run.

    ``encoding``: the fingerprint of the dataset at encoding.path. ``code``: the checksum of the code in use; units
    from other versions must not be mixed with its own.
    """

    config: dict[str, Any]
    sources: tuple[Source, ...]
    encoding: str | None
    code: str = field(default_factory=own_code)


def read_run(output: Path) -> RunRecord | None:
    """The run that OUTPUT/.work belongs to, if there is one. Raises ConfigError if another version started it."""
    path = output / WORK / "plan.json"
    if not is_file(path):
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value.get("code") != own_code():
            what = f"{output} holds an unfinished dataset of another version of dlrm-preprocess, which may encode in another way"
            raise ConfigError([f"{what}: delete {output} and start again, or finish it with that version"])
        return from_json(RunRecord, value)
    except (ValueError, AttributeError) as error:
        raise DataError(f"{path} is damaged ({error}): delete {output} and start again") from error


def write_run(output: Path, run: RunRecord) -> None:
    write_json(output / WORK / "plan.json", asdict(run))


def open_keys(output: Path, before: RunRecord) -> list[str]:
    """The settings that may still change, because no finished work depends on them.

    They are the ones that an error may ask to change. After a change of the encoding, call ``forget_passes`` for vocabularies.
    """
    begun, keys = landed_passes(output), ["rejects.max_fraction", "dataset.published_rows", "auto"]
    if begun <= {"lines"}:
        keys += ["split"]
    if begun <= {"lines", "study", "vocab"}:
        keys += ["dense.target_columns"]
        if before.config["encoding"]["kind"] == "vocab":
            words = ("kind", "num_embeddings", "min_count", "top_k", "shared", "capacity")
            keys += [f"encoding.{word}" for word in words]
    return keys


def forget_passes(output: Path, *names: str) -> None:
    """Deletes the work of the passes ``names``, or of all passes, and the files that they made."""
    for name in names or {"vocab", "waiting", "target", *(path.name for path in (output / WORK).glob("*"))}:
        shutil.rmtree(output / WORK / name, ignore_errors=True)
        shutil.rmtree(output / name, ignore_errors=True)


def remove_temporary_files(output: Path) -> None:
    """Deletes unfinished files of a killed run or worker. This run holds the lock, so it is the only one."""
    for pattern in (".*.tmp", "*/.*.tmp", f"{WORK}/*/.*.tmp"):
        for path in output.glob(pattern):
            path.unlink()


@contextmanager
def locked(output: Path) -> Iterator[None]:
    """Locks OUTPUT for this process. The lock ends with the process."""
    (output / WORK).mkdir(parents=True, exist_ok=True)
    refusal = f"another dlrm-preprocess is working on output={output}: wait for it or end it"
    with held_lock(output / WORK / "lock", refusal):
        yield
