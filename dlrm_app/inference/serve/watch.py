"""Another export at the same path is taken up while requests go on; one that is damaged is refused, the old one stays."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from dlrm_app.errors import DlrmError
from dlrm_app.inference.serve.served_export import ServedExport

logger = logging.getLogger(__name__)
Files = tuple[tuple[str, int, int, int], ...]


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
    """``current`` is the export to score with; ``open_`` makes it from ``path``, in a thread that ``set_up`` begins.

    Raises DlrmError if the first one cannot be served. ``on_swap`` is told whether another one was taken up.
    """

    def __init__(
        self,
        path: Path,
        open_: Callable[[Path], ServedExport],
        set_up: Callable[[], None],
        on_swap: Callable[[bool], None],
    ) -> None:
        self._path = path
        self._open = open_
        self._on_swap = on_swap
        self._thread = ThreadPoolExecutor(1, "load", initializer=set_up)
        self._tried = files_of(path)
        self._asked = asyncio.Event()
        self.refused: str | None = None
        """Why the newest export at the path is not served, if it is not."""
        self.current = self._thread.submit(open_, path).result()

    def ask(self) -> None:
        """Looks at once, and tries again what was refused."""
        self._tried = ()
        self._asked.set()

    async def run(self, seconds: float | None) -> None:
        """Looks every ``seconds``, or only when asked. Files that still change are left until the next look."""
        before = self._tried
        while True:
            self._asked.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._asked.wait(), seconds)
            loop = asyncio.get_running_loop()
            files = await loop.run_in_executor(self._thread, files_of, self._path)
            is_still = files == before or self._asked.is_set()
            before = files
            if files and files != self._tried and is_still:
                self._tried = files
                await self._take_up()

    async def _take_up(self) -> None:
        try:
            served = await asyncio.get_running_loop().run_in_executor(self._thread, self._open, self._path)
        except Exception as error:  # whatever a library says: requests go on, and so does the watch
            self.refused = str(error) if isinstance(error, DlrmError) else repr(error)
            self._on_swap(False)
            logger.error(
                "the new export at %s is refused, export %s goes on:\n%s",
                self._path,
                self.current.identity,
                self.refused,
            )
            return
        self.refused = None
        logger.info("export %s is served now, in place of %s", served.identity, self.current.identity)
        self.current = served
        self._on_swap(True)
