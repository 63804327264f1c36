"""The export at a path is served: another one there is taken up while requests go on, one that is damaged is refused and
the old one stays, and a scorer that ends is started again."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from dlrm_app.errors import DlrmError
from dlrm_app.inference.serve.metrics import ServerMetrics
from dlrm_app.inference.serve.scorer import Scorer

logger = logging.getLogger(__name__)
Files = tuple[tuple[str, int, int, int], ...]
MAX_RESTARTS, WITHIN_SECONDS = 3, 300.0
"""A scorer that ends more often is not started again: something is wrong that another start does not mend."""


def files_of(path: Path) -> Files:
    """Name, size, inode and time of change of every file at ``path``: other ones there, or a link to others, differ."""
    files = []
    for file in sorted(path.resolve().rglob("*")):
        try:
            status = file.stat()
        except OSError:
            continue  # it has just been deleted or renamed
        files.append((str(file), status.st_size, status.st_ino, status.st_mtime_ns))
    return tuple(files)


class Watch:
    """``current`` is what to score with, once ``start`` has returned; ``open_`` makes it from a path."""

    current: Scorer

    def __init__(
        self, path: Path, open_: Callable[[Path], Awaitable[Scorer]], metrics: ServerMetrics
    ) -> None:
        self._path = path
        self._open = open_
        self._metrics = metrics
        self._tried: Files = ()
        self._wake = asyncio.Event()
        self._ends: deque[float] = deque(maxlen=MAX_RESTARTS + 1)
        self._closing: set[asyncio.Task[None]] = set()
        self.refused: str | None = None
        """Why the newest export at the path is not served, if it is not."""
        self.failure: str | None = None
        """Why nothing is served, if nothing is."""

    async def start(self) -> None:
        """Serves the first export. Raises DlrmError if it cannot be."""
        self._tried = files_of(self._path)
        self._serve(await self._open(self._path))

    def ask(self) -> None:
        """Looks at once, and tries again what was refused."""
        self._tried = ()
        self._wake.set()

    async def run(self, seconds: float | None) -> None:
        """Looks every ``seconds``, or only when asked. Files that still change are left until the next look."""
        before = self._tried
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), seconds)
            self._wake.clear()
            if self.current.ended.done() and not self.failure:
                await self._restart()
            files = await asyncio.to_thread(files_of, self._path)
            is_still = files == before or not self._tried
            before = files
            if files and files != self._tried and is_still:
                self._tried = files
                await self._take_up()

    async def close(self) -> None:
        """Ends every scorer."""
        await asyncio.gather(self.current.close(), *self._closing)

    async def _restart(self) -> None:
        """Starts another scorer with the export of the one that ended."""
        served, reason = self.current.served, self.current.ended.result()
        self._metrics.scorer_ended()
        self._ends.append(time.monotonic())
        self.failure = f"the process that scores {reason}"
        if len(self._ends) > MAX_RESTARTS and self._ends[-1] - self._ends[0] < WITHIN_SECONDS:
            self.failure += (
                f", the last of {len(self._ends)} within {WITHIN_SECONDS:g} s: find out why, then send SIGHUP"
            )
            logger.error(self.failure)
            return
        logger.error("%s; it is started again", self.failure)
        try:
            self._exchange(await self._open(Path(served.folder)))
        except DlrmError as error:
            self.failure += f", and another cannot be started: {error}"
            logger.error(self.failure)

    async def _take_up(self) -> None:
        old = self.current.served.identity
        try:
            scorer = await self._open(self._path)
        except DlrmError as error:
            self.refused = str(error)
            self._metrics.swapped(False)
            goes_on = "" if self.failure else f", export {old} goes on"
            logger.error("the new export at %s is refused%s:\n%s", self._path, goes_on, self.refused)
            return
        self.refused = None
        logger.info("export %s is served now, in place of %s", scorer.served.identity, old)
        self._exchange(scorer)
        self._metrics.swapped(True)

    def _serve(self, scorer: Scorer) -> None:
        self.current, self.failure = scorer, None
        scorer.ended.add_done_callback(lambda _: self._wake.set())

    def _exchange(self, scorer: Scorer) -> None:
        old = self.current
        self._serve(scorer)
        task = asyncio.create_task(_leave(old))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _leave(scorer: Scorer) -> None:
    await scorer.drain()
    await scorer.close()
