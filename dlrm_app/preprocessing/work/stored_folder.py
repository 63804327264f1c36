"""OUTPUT in a store, as it is seen by ranks that share no disk (docs/adr/0027-ranks-meet-in-files.md).

Each rank works in a local folder of its own, and sends what it finishes under its final name. Rank 0's folder is the
local side of OUTPUT; another rank's begins empty and is deleted at the end. What a rank needs of others is fetched
before a pass. Shards, and the runs of a full shuffle, stay in the store until somebody reads them.
"""

import io
import logging
import pickle
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dlrm_app.dataset.manifest import MANIFEST
from dlrm_app.errors import ConfigError, DataError, DlrmError, Problem
from dlrm_app.files import is_file
from dlrm_app.journal import Journal
from dlrm_app.logs.sources.store import Address, in_threads
from dlrm_app.preprocessing.work.executor import Pass
from dlrm_app.preprocessing.work.meeting import BEAT_SECONDS
from dlrm_app.preprocessing.work.packed import Unpacker
from dlrm_app.preprocessing.work.shared_folder import FOLDERS, LEAD, SETTINGS
from dlrm_app.preprocessing.work.work_folder import PLAN, RANKS, WORK
from dlrm_app.stores.fetch import Files, KeptFolder
from dlrm_app.stores.local import in_order, rank_folder
from dlrm_app.stores.mirror import Mirror, kept_folder, sending
from dlrm_app.stores.names import here, url_of
from dlrm_app.stores.objects import StoredFile, StoredFolder
from dlrm_app.stores.parts import note_left
from dlrm_app.stores.shards import bring_later, shards_in

logger = logging.getLogger(__name__)

_ROWS = re.compile(rf"{re.escape(WORK)}/[^/]+/[^/]+\.(parquet|run)|[^/]+/part-\d+\.parquet")
"""Files with the rows of a dataset, finished or not."""
_MEETING = f"{WORK}/{RANKS}/"


class SharedInStore:
    """See ``shared_folder.SharedFolder``. ``mirror`` sends the files of this rank's ``folder`` to ``kept``."""

    pace = 5

    def __init__(self, kept: KeptFolder, folder: Path, mirror: Mirror, *, is_first: bool) -> None:
        self._kept, self._folder, self._mirror, self._is_first = kept, folder, mirror, is_first
        self._meeting = StoredFolder(f"{kept.stored.url}/{_MEETING}".rstrip("/"))
        self._listed: dict[str, StoredFile] = {}
        self._read: dict[str, tuple[str, bytes]] = {}

    def open(self, num_ranks: int) -> None:
        states = self._states_from(num_ranks)
        if states:
            time.sleep(3 * BEAT_SECONDS * self.pace)
            now = self._states_from(num_ranks)
            if any(now.get(name) not in (None, file) for name, file in states.items()):
                rule, cure = "is worked on by other ranks of dlrm-preprocess", "wait for them or end them"
                raise DlrmError(Problem(f"output={self._kept.stored}", rule, cure))
            self._meeting.delete(states)

    def _states_from(self, rank: int) -> dict[str, StoredFile]:
        numbers = [(name, file, name.removesuffix(".state")) for name, file in self._meeting.list().items()]
        return {name: file for name, file, number in numbers if number.isdigit() and int(number) >= rank}

    def is_open(self) -> bool:
        self.look()
        return LEAD in self._listed and SETTINGS in self._listed

    def is_finished(self) -> bool:
        return LEAD not in self._listed and self._kept.stored.has(MANIFEST)

    def locked(self, rank: int) -> AbstractContextManager[None]:
        return nullcontext()  # its folder is locked already

    def look(self) -> None:
        self._listed = self._meeting.list()

    def read(self, name: str) -> bytes:
        tag = self._listed[name].tag if name in self._listed else ""
        if tag and name in self._read and self._read[name][0] == tag:
            return self._read[name][1]
        if (found := self._meeting.read(name)) is None:
            raise FileNotFoundError(name)
        data, tag = found
        self._read[name] = tag, data
        return data

    def write(self, name: str, data: bytes) -> None:
        if self._is_first or LEAD in self._listed:  # else rank 0 has gone, or deleted all at the end
            self._meeting.write(name, data)

    def pack(self, value: Any) -> bytes:
        file = io.BytesIO()
        _Pickler(file).dump(value)
        return file.getvalue()

    def unpack(self, data: bytes) -> Any:
        return _Unpacker(data, self._kept.folder, self._folder).load()

    def fetch(self, work: Pass[Any, Any]) -> None:
        records = () if self._is_first else (f"{work.journal.folder.name}/*.json",)
        patterns = [f"{WORK}/{each}" for each in (*work.reads, *records)]

        def is_read(name: str) -> bool:
            return any(fnmatchcase(name, pattern) for pattern in patterns)

        self._fetch(lambda name: is_read(name) or self._is_made(name))

    def fetch_records(self, journal: Journal[Any]) -> None:
        self._fetch(self._is_made)

    def _is_made(self, name: str) -> bool:
        """True for what this rank reads in any case: rank 0 all but rows, the others what earlier passes made in OUTPUT."""
        return not _ROWS.fullmatch(name) and not name.startswith(_MEETING if self._is_first else f"{WORK}/")

    def _fetch(self, is_wanted: Callable[[str], bool]) -> None:
        left = self._mirror.fetch(is_wanted)
        if self._is_first:
            note_left(self._folder, left)

    def showing(self) -> AbstractContextManager[None]:
        return sending(self._mirror)

    def show(self) -> None:
        self._mirror.send(is_last=True)

    def rename(self, names: Iterable[tuple[Path, Path]]) -> list[Path]:
        stored = self._kept.stored
        present = stored.list()

        def rename_one(pair: tuple[Path, Path]) -> Path | None:
            path, final = pair
            old, new = (each.relative_to(self._folder).as_posix() for each in pair)
            if path.exists():
                path.replace(final)  # the mirror copies it within the store
            elif not final.exists() and old in present:
                note_left(self._folder, [new])
                stored.copy(old, new, "")
            elif not final.exists() and new not in present:
                return path
            return None

        return [path for path in in_threads(rename_one, [*names]) if path is not None]

    def finished(self) -> Path:
        self._kept.fetch()
        return self._kept.folder

    def close(self) -> None:
        is_finished = is_file(self._folder / MANIFEST)
        if not is_finished and is_file(self._folder / WORK / PLAN):
            return
        try:
            self.show()
            stored = self._kept.stored.list()
            names = [name for name in stored if name.startswith(f"{WORK}/")]
            for group in reversed(in_order(names)):
                self._kept.stored.delete(group)
        except DataError as error:
            logger.warning(
                "%s: what ranks needed for the work is left in the store: %s", self._kept.stored, error
            )
            return
        if is_finished:
            here = {name: file for name, file in stored.items() if not (self._folder / name).is_file()}
            bring_later(
                self._kept.stored, self._folder, {n: f for n, f in here.items() if _ROWS.fullmatch(n)}
            )


class _Pickler(pickle.Pickler):
    """Packs local places of stores as their URLs. Raises ConfigError for an input with credentials in its URL."""

    def persistent_id(self, value: Any) -> str | None:
        if isinstance(value, Address) and value.url != value:
            rule = (
                "has credentials in its URL, which the other ranks would have to read in the output's store"
            )
            raise ConfigError(Problem(str(value), rule, "give them in the environment of all ranks"))
        return url_of(value) if isinstance(value, Path) else None


class _Unpacker(Unpacker):
    """Unpacks URLs as this machine's places, and those in ``output`` as places in this rank's ``folder``."""

    def __init__(self, data: bytes, output: Path, folder: Path) -> None:
        super().__init__(io.BytesIO(data))
        self._output, self._folder = output, folder

    def persistent_load(self, url: str) -> Path:
        place = here(url)
        return self._folder / place.relative_to(self._output) if place.is_relative_to(self._output) else place


def _left_in(source: StoredFolder, stored: Files) -> Files:
    """The ``stored`` files that rank 0 leaves in the store: rows, and what ranks say of themselves."""
    left = {name: file for name, file in stored.items() if _ROWS.fullmatch(name) or name.startswith(_MEETING)}
    return {**left, **shards_in(source, stored)}


@contextmanager
def stored_output(kept: KeptFolder, rank: int) -> Iterator[Path]:
    """Lets ``rank`` of ranks that share no disk work on ``kept`` while the block runs; yields its local folder.

    Raises DlrmError if another command works there, or if the store fails.
    """
    if rank == 0:
        with kept_folder(kept, leave=_left_in) as mirror:
            shared = SharedInStore(kept, kept.folder, mirror, is_first=True)
            yield from _entered(shared, kept.folder)
            shared.close()  # also after an earlier command that was killed between its manifest and this
    elif kept.stored.has(MANIFEST):
        kept.fetch()
        yield kept.folder
    else:
        with rank_folder(kept.stored.url, rank) as folder:
            (folder / WORK).mkdir()
            mirror = Mirror(KeptFolder(kept.stored, folder))
            mirror.fetch(lambda name: name == f"{WORK}/{PLAN}")
            yield from _entered(SharedInStore(kept, folder, mirror, is_first=False), folder)


def _entered(shared: SharedInStore, folder: Path) -> Iterator[Path]:
    FOLDERS[folder] = shared
    try:
        yield folder
    finally:
        del FOLDERS[folder]
