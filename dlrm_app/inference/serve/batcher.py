"""Requests that come at about the same time are scored together, in one thread."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dlrm_app.inference.serve.json_rows import RequestError
from dlrm_app.inference.serve.served_export import Answer

Rows = list[dict[str, object]]
ScoreRequests = Callable[[Sequence[Rows]], list[Answer]]


@dataclass(frozen=True)
class _Waiting:
    rows: Rows
    since: float
    answer: "asyncio.Future[Answer]"


class Batcher:
    """Gives ``score`` up to ``max_rows`` rows at a time, in a thread of its own that ``set_up`` begins.

    The first request of a batch waits at most ``max_wait`` seconds for others; a request of more rows is a batch by
    itself. ``on_batch`` is told the rows of each batch.
    """

    def __init__(
        self,
        score: ScoreRequests,
        *,
        max_rows: int,
        max_wait: float,
        max_queued: int,
        set_up: Callable[[], None],
        on_batch: Callable[[int], None],
    ) -> None:
        self._score = score
        self._max_rows = max_rows
        self._max_wait = max_wait
        self._max_queued = max_queued
        self._on_batch = on_batch
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "score", initializer=set_up)
        self.queued_rows = 0

    async def score(self, rows: Rows, timeout: float) -> list[float]:
        """The probability of each of ``rows``. Raises RequestError for bad rows, a full queue, and after ``timeout`` seconds."""
        if self.queued_rows and self.queued_rows + len(rows) > self._max_queued:
            raise RequestError(
                503, f"{self.queued_rows:,} rows wait, limits.queued_rows={self._max_queued:,}: try later"
            )
        request = _Waiting(rows, time.monotonic(), asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self.queued_rows += len(rows)
        self._arrived.set()
        try:
            answer = await asyncio.wait_for(request.answer, timeout)
        except asyncio.TimeoutError:
            raise RequestError(
                503, f"not scored within limits.seconds={timeout:g}: try later, or send fewer rows"
            ) from None
        if isinstance(answer, RequestError):
            raise answer
        return answer

    async def run(self) -> None:
        """Scores what comes, until it is cancelled."""
        try:
            while True:
                await self._first()
                await self._more()
                await self._score_some(self._take())
        finally:
            self._thread.shutdown(wait=False)

    async def _first(self) -> None:
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()

    async def _more(self) -> None:
        """Waits for as many rows as a batch holds, or until the first request has waited long enough."""
        until = self._waiting[0].since + self._max_wait
        while self.queued_rows < self._max_rows and (left := until - time.monotonic()) > 0:
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), left)
            except asyncio.TimeoutError:
                return

    def _take(self) -> list[_Waiting]:
        """The first requests, of as many rows as a batch holds; those that nobody waits for any more are left out."""
        taken: list[_Waiting] = []
        rows = 0
        while self._waiting and (not taken or rows + len(self._waiting[0].rows) <= self._max_rows):
            request = self._waiting.popleft()
            self.queued_rows -= len(request.rows)
            if not request.answer.done():
                taken.append(request)
                rows += len(request.rows)
        return taken

    async def _score_some(self, requests: list[_Waiting]) -> None:
        if not requests:
            return
        self._on_batch(sum(len(request.rows) for request in requests))
        rows = [request.rows for request in requests]
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._score, rows)
        except Exception as error:
            for request in requests:
                if not request.answer.done():
                    request.answer.set_exception(error)
            return
        for request, answer in zip(requests, answers, strict=True):
            if not request.answer.done():
                request.answer.set_result(answer)
