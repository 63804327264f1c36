"""Follows the path of an export: a new one is opened beside the one that is served, and takes over if it can.

dlrm-days moves the link ``published`` to the newest day's export; a server that follows it needs no restart. An export
that is damaged, half copied, of other columns or too large is left alone, and the old one goes on. A path in a store is
fetched each time, if it has changed there.
"""

import gc
import logging
import os
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from dlrm_app.checksums import checksum
from dlrm_app.dataset.label import described_label
from dlrm_app.errors import DataError, DlrmError, Problem
from dlrm_app.inference.delta import apply_delta
from dlrm_app.inference.record import DELTA, RECORD, read_delta
from dlrm_app.inference.serve.scoring import ServedExport, open_served
from dlrm_app.kernels.memory import give_back
from dlrm_app.machine import available_memory
from dlrm_app.stores.fetch import fetched
from dlrm_app.stores.room import release
from dlrm_app.text import bytes_text

logger = logging.getLogger(__name__)

_LOWER_PRIORITY = 10
"""The niceness of the thread that opens exports, so that requests do not wait for it."""


@dataclass(frozen=True)
class Serving:
    """The export that answers requests, and what is known of changes.

    folder: where it lay when it was opened
    since: seconds since 1970
    changes: how many exports took over since the server's start
    failures: how many could not
    failure: why the last one that was looked at could not; None if it could
    """

    export: ServedExport
    folder: Path
    since: float = field(default_factory=time.time)
    changes: int = 0
    failures: int = 0
    failure: str | None = None

    @property
    def name(self) -> str:
        """The last two parts of its folder and its identity, such as 2026-11-20/export 1b2c3d4e5f60."""
        return f"{'/'.join(self.folder.parts[-2:])} {self.export.identity}"


class Follower:
    """Keeps ``serving`` at the export that ``path`` leads to, which scores on ``num_threads`` threads.

    ``look`` may take long: call it in a thread of its own, which ends then. A compiled package stays loaded as long
    as a thread that has called or freed it, so the old export is freed by the next ``look``, when no request holds it.
    """

    def __init__(self, path: Path, export: ServedExport, num_threads: int = 1) -> None:
        self._path, self._num_threads = path, num_threads
        self.serving = Serving(export, export.model.folder)
        self._refused: object = None
        """The export that was last refused, as it was found at the path."""
        self._replaced: Serving | None = None
        """The export that was served before, until it is freed."""
        self._rebuilt: Path | None = None
        """The temporary folder of the served export, if it was made from a delta."""
        self._alone = threading.Lock()

    def look(self) -> bool:
        """Opens the export at the path, if it is another one than is served.

        Returns True if it took over; the next call, a moment later, frees the one that was served before.
        """
        with self._alone:
            self._free()
            if not self._fetched():
                return False
            folder = self._path.resolve()
            found = _described(folder)
            if found == self._refused:
                return False
            try:
                new, rebuilt = self._open(folder)
            except (DlrmError, OSError) as error:
                self._refused = found
                reason = str(error)
                failures = self.serving.failures + 1
                self.serving = replace(self.serving, failures=failures, failure=f"{folder}: {reason}")
                logger.warning("%s does not take over, %s goes on: %s", folder, self.serving.name, reason)
                return False
            self._refused = None
            if new is None:
                self.serving = replace(self.serving, failure=None)
                return False
            before = self._replaced = self.serving
            # the next batch reads it
            self.serving = Serving(new, folder, changes=before.changes + 1, failures=before.failures)
            logger.info("%s takes over from %s", self.serving.name, before.name)
            self._forget_rebuilt(rebuilt)
            return True

    def _fetched(self) -> bool:
        """Fetches what has changed at the path in its store, if it is in one. False if the store does not give it."""
        try:
            fetched(self._path)
            return True
        except (DlrmError, OSError) as error:
            reason = str(error)
            if self.serving.failure != reason:
                logger.warning("%s goes on: %s", self.serving.name, reason)
                failures = self.serving.failures + 1
                self.serving = replace(self.serving, failures=failures, failure=reason)
            return False

    def _free(self) -> None:
        if self._replaced is not None:
            release(self._replaced.folder)
            self._replaced = None
            gc.collect()
            give_back()

    def close(self) -> None:
        """Deletes temporary files."""
        self._forget_rebuilt(None)

    def _forget_rebuilt(self, now: Path | None) -> None:
        if self._rebuilt is not None:
            shutil.rmtree(self._rebuilt, ignore_errors=True)
        self._rebuilt = now

    def _open(self, folder: Path) -> tuple[ServedExport | None, Path | None]:
        """(the export in ``folder``, the temporary folder that it lies in if it was made from a delta).

        The export is None if it is served already. Raises DlrmError or OSError if it cannot be served in place of the
        one that is.
        """
        served = self.serving.export
        if (folder / DELTA).is_file():
            if read_delta(folder).result.removeprefix("sha256:").startswith(served.identity):
                return None, None
            rebuilt = Path(tempfile.mkdtemp(prefix="dlrm-serve-"))
            try:
                apply_delta(served.model.folder, folder, rebuilt)
                return self._checked(rebuilt), rebuilt
            except BaseException:
                shutil.rmtree(rebuilt, ignore_errors=True)
                raise
        if (folder / RECORD).is_file() and _identity(folder) == served.identity:
            return None, None
        return self._checked(folder), None

    def _checked(self, folder: Path) -> ServedExport:
        """Opens the export in ``folder``. Raises DlrmError if it is damaged, does not fit, or answers other requests."""
        needed, free = sum(size for _, size, _ in _described(folder)), available_memory()
        if needed > free:
            rule = f"needs about {bytes_text(needed)} of memory beside the one that is served, {bytes_text(free)} are free"
            raise DlrmError(Problem(str(folder), rule, "stop other programs, or restart the server with it"))
        new, served = open_served(folder, self._num_threads), self.serving.export
        if _asked(new) != _asked(served):
            raise DataError(_column_problem(folder, served, new))
        return new


def _asked(export: ServedExport) -> dict[str, object]:
    """The part of an export that clients rely on: how values of requests are read, and the labels of answers."""
    spec, model = export.requests.spec, export.model
    read = {column.name: replace(column, first=None, last=None) for column in spec.columns}
    return {**read, "null words": spec.null_values, "labels": model.labels or described_label(model.encoding)}


def _column_problem(folder: Path, served: ServedExport, new: ServedExport) -> Problem:
    then, now = _asked(served), _asked(new)
    changed = sorted(name for name in {*then, *now} if then.get(name) != now.get(name))
    rule = (
        f"reads other columns, or gives other labels, than the export that is served ({', '.join(changed)})"
    )
    return Problem(str(folder), rule, "restart the server with it, once clients know of this")


def _identity(folder: Path) -> str:
    return checksum(folder / RECORD).removeprefix("sha256:")[:12]


def _described(folder: Path) -> list[tuple[str, int, int]]:
    """(name, size, time of the last change) of all files in ``folder``; empty if it does not exist."""
    found = []
    for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
        try:
            status = path.stat()
        except OSError:  # just deleted
            continue
        if path.is_file():
            found.append((str(path.relative_to(folder)), status.st_size, status.st_mtime_ns))
    return found


def lower_priority() -> None:
    """Lets other threads of this process go first. It sets the calling thread's niceness, which Linux keeps by thread."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWER_PRIORITY)
