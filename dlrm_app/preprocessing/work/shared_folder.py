"""The files by which ranks that share the work on OUTPUT see each other: on a disk that all share, or through a store.

OUTPUT/.work/ranks/settings      the configuration of rank 0, which all must have
OUTPUT/.work/ranks/<rank>.state  what a rank says of itself (``meeting``)
OUTPUT/.work/ranks/<rank>.lock   held by the rank's process
OUTPUT/.work/ranks/<process of rank 0>-<number>.task   a pass and its feeds
"""

import os
import pickle
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from dlrm_app.dataset.manifest import MANIFEST
from dlrm_app.errors import DlrmError, Problem
from dlrm_app.files import is_file
from dlrm_app.journal import Journal
from dlrm_app.locks import held_lock
from dlrm_app.preprocessing.work.executor import Pass
from dlrm_app.preprocessing.work.packed import unpack
from dlrm_app.preprocessing.work.work_folder import RANKS, WORK

SETTINGS, LEAD = "settings", "0.state"


class SharedFolder(Protocol):
    """The folder OUTPUT, as a rank sees it. Names are those of files in OUTPUT/.work/ranks."""

    pace: int
    """How many times longer the pauses between two looks are than on a disk."""

    def open(self, num_ranks: int) -> None:
        """Lets ranks meet here. For rank 0. Raises DlrmError if ranks from ``num_ranks`` on still work here."""

    def is_open(self) -> bool:
        """True once rank 0 has opened it."""

    def is_finished(self) -> bool:
        """True if OUTPUT holds a finished dataset."""

    def locked(self, rank: int) -> AbstractContextManager[None]:
        """Keeps other processes from being ``rank``. Raises DlrmError if one is."""

    def look(self) -> None:
        """Prepares for reading the files as they are now."""

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError, and DlrmError if another user has written the file, which may hold pickles."""

    def write(self, name: str, data: bytes) -> None:
        """Writes a file, whole or not at all."""

    def pack(self, value: Any) -> bytes:
        """``value`` for another rank, which may see OUTPUT at another place."""

    def unpack(self, data: bytes) -> Any:
        """The value that another rank has packed."""

    def fetch(self, work: Pass[Any, Any]) -> None:
        """Returns once all is here that other ranks have made and ``work`` reads."""

    def fetch_records(self, journal: Journal[Any]) -> None:
        """Returns once the records of ``journal`` that other ranks have written are here. For rank 0."""

    def showing(self) -> AbstractContextManager[None]:
        """Shows others what this rank finishes while the block runs."""

    def show(self) -> None:
        """Returns once others can see all that this rank has finished."""

    def rename(self, names: Iterable[tuple[Path, Path]]) -> list[Path]:
        """Gives files of any rank their final names. Returns those that are gone."""

    def finished(self) -> Path:
        """The finished dataset, for a rank other than 0."""

    def close(self) -> None:
        """Deletes what the ranks needed if the dataset is finished, or was not begun. For rank 0."""


class SharedOnDisk:
    """OUTPUT on a disk that all ranks see, where nothing has to be sent or fetched."""

    pace = 1

    def __init__(self, output: Path) -> None:
        self._output, self._ranks = output, output / WORK / RANKS
        self._user = -1

    def open(self, num_ranks: int) -> None:
        self._ranks.mkdir(parents=True, exist_ok=True)

    def is_open(self) -> bool:
        return self._ranks.is_dir()

    def is_finished(self) -> bool:
        return is_file(self._output / MANIFEST)

    def locked(self, rank: int) -> AbstractContextManager[None]:
        refusal = f"another process is rank {rank} of those that work on output={self._output}: wait for it or end it"
        return held_lock(self._ranks / f"{rank}.lock", refusal)

    def look(self) -> None: ...

    def read(self, name: str) -> bytes:
        with (self._ranks / name).open("rb") as file:
            if os.fstat(file.fileno()).st_uid != self._user:
                rule, cure = "was written by another user", "start all ranks as one user"
                raise DlrmError(Problem(str(self._ranks / name), rule, cure))
            return file.read()

    def write(self, name: str, data: bytes) -> None:
        # renamed into place, so that no reader finds half of it; without fsync, as it is of no use after a power cut
        temporary = self._ranks / f"{name}.new"
        temporary.write_bytes(data)
        self._user = temporary.stat().st_uid
        temporary.replace(self._ranks / name)

    def pack(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def unpack(self, data: bytes) -> Any:
        return unpack(data)

    def fetch(self, work: Pass[Any, Any]) -> None: ...

    def fetch_records(self, journal: Journal[Any]) -> None: ...

    def showing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def show(self) -> None: ...

    def rename(self, names: Iterable[tuple[Path, Path]]) -> list[Path]:
        gone = []
        for path, final in names:
            if path.exists():
                path.replace(final)
            elif not final.exists():  # else an interrupted run has renamed it
                gone.append(path)
        return gone

    def finished(self) -> Path:
        return self._output

    def close(self) -> None: ...


FOLDERS: dict[Path, SharedFolder] = {}
"""The local place of OUTPUT → how its ranks see it, where they share a store and no disk."""


def shared_folder(output: Path) -> SharedFolder:
    return FOLDERS.get(output) or SharedOnDisk(output)
