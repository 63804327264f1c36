"""A process that scores with one export, as the server sees it."""

import asyncio
import json
import logging
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from dlrm_app.errors import DataError
from dlrm_app.inference.serve.answers import Answer, RequestError
from dlrm_app.inference.serve.batcher import Batcher, ScoreRequests
from dlrm_app.inference.serve.json_rows import JsonRows
from dlrm_app.inference.serve.scoring_process import DONE, HEAD, Order, Served, frame, unpack_scored
from dlrm_app.records import from_json

logger = logging.getLogger(__name__)
MODULE = "dlrm_app.inference.serve.scoring_process"
_END_SECONDS = 10


@dataclass(frozen=True)
class ScorerSettings:
    """``patience``: seconds after which a process that does not answer is ended. ``batcher`` makes one for what scores."""

    threads: int
    capacity: int
    patience: float
    batcher: Callable[[ScoreRequests], Batcher]


class Scorer:
    """Scores requests, those that come together at once, in a process of its own. Made by ``start``.

    ``served`` is its export; ``ended`` is done once the process has ended, with the reason.
    """

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        served: Served,
        settings: ScorerSettings,
    ) -> None:
        self.served = served
        self.pid = process.pid
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._process = process
        self._reader, self._writer = streams
        self._patience = settings.patience
        self._json_rows = JsonRows(served.spec)
        self._awaited: deque[asyncio.Future[bytes]] = deque()
        self._batcher = settings.batcher(self._score_lines)
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._batcher.run())]

    @classmethod
    async def start(cls, path: Path, settings: ScorerSettings) -> "Scorer":
        """Starts a process that verifies and loads the export at ``path``. Raises DataError where it cannot."""
        here, there = socket.socketpair()
        with there:
            command = [sys.executable, "-m", MODULE, str(there.fileno())]
            # a group of its own, for a Ctrl-C is for the server, which ends it
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[there.fileno()], process_group=0
            )
        reader, writer = await asyncio.open_connection(sock=here)
        try:
            folder = path.resolve()
            order = Order(str(folder), settings.capacity, settings.threads)
            writer.write(frame(json.dumps(asdict(order)).encode()))
            message = await _receive(reader)
            if not message.startswith(DONE):
                raise DataError(message[1:].decode())
            served = from_json(Served, json.loads(message[1:]))
            return cls(process, (reader, writer), served, settings)
        except BaseException as error:
            writer.close()
            process.kill()
            reason = await asyncio.to_thread(_why_it_ended, process)
            if isinstance(error, asyncio.IncompleteReadError | ConnectionError):
                raise DataError(f"the process that was to load {folder} {reason}") from error
            raise

    @property
    def queued_rows(self) -> int:
        """Rows that wait to be scored."""
        return self._batcher.queued_rows

    async def score(self, rows: list[dict[str, object]], timeout: float) -> list[float]:
        """The probability of each of ``rows``. Raises RequestError."""
        return await self._batcher.score(self._json_rows.lines(rows), timeout)

    async def drain(self) -> None:
        """Waits until all that has come is answered."""
        await self._batcher.drain()

    async def close(self) -> None:
        """Ends the process."""
        self._writer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(_end, self._process)

    async def _score_lines(self, requests: Sequence[list[str]]) -> list[Answer]:
        lines = [line for request in requests for line in request]
        message = await self._ask("\n".join(lines).encode())
        if not message.startswith(DONE):
            raise RuntimeError(f"the scoring process failed: {message[1:].decode()}")
        return unpack_scored(message[1:], len(lines)).answers([len(request) for request in requests])

    async def _ask(self, message: bytes) -> bytes:
        if self.ended.done():
            raise _unavailable(self.ended.result())
        answer = asyncio.get_running_loop().create_future()
        self._awaited.append(answer)
        self._writer.write(frame(message))
        try:
            return await asyncio.wait_for(asyncio.shield(answer), self._patience)
        except asyncio.TimeoutError:
            logger.error("the scoring process has not answered for %g s and is ended", self._patience)
            self._process.kill()
            return await answer

    async def _listen(self) -> None:
        """Takes the answers, in order, until the process ends."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                message = await _receive(self._reader)
                self._awaited.popleft().set_result(message)
        self._process.kill()  # it has closed its end, so there is nothing left of it to wait for
        reason = await asyncio.to_thread(_why_it_ended, self._process)
        self.ended.set_result(reason)
        while self._awaited:
            self._awaited.popleft().set_exception(_unavailable(reason))


async def _receive(reader: asyncio.StreamReader) -> bytes:
    (length,) = HEAD.unpack(await reader.readexactly(HEAD.size))
    return await reader.readexactly(length)


def _unavailable(reason: str) -> RequestError:
    return RequestError(503, f"the process that scores {reason}: try again")


def _end(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _why_it_ended(process: "subprocess.Popen[bytes]") -> str:
    code = process.wait()
    if code >= 0:
        return f"ended with exit code {code}"
    hint = ", as when memory runs out" if code == -signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-code).name}{hint}"
