"""Requests that come at about the same time are scored together, one batch after the other."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from dlrm_app.inference.serve.answers import Answer, RequestError

ScoreRequests = Callable[[Sequence[list[str]]], Awaitable[list[Answer]]]
"""An answer to each of some requests, which are lines."""


@dataclass(frozen=True)
class _Waiting:
    lines: list[str]
    since: float
    answer: "asyncio.Future[Answer]"


class Batcher:
    """Gives ``score`` up to ``max_rows`` rows at a time, while ``run`` runs.

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
        on_batch: Callable[[int], None],
    ) -> None:
        self._score = score
        self._max_rows = max_rows
        self._max_wait = max_wait
        self._max_queued = max_queued
        self._on_batch = on_batch
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.queued_rows = 0

    async def score(self, lines: list[str], timeout: float) -> list[float]:
        """The probability of each of ``lines``. Raises RequestError for bad rows, a full queue, and after ``timeout`` seconds."""
        if self.queued_rows and self.queued_rows + len(lines) > self._max_queued:
            raise RequestError(
                503, f"{self.queued_rows:,} rows wait, limits.queued_rows={self._max_queued:,}: try later"
            )
        request = _Waiting(lines, time.monotonic(), asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self.queued_rows += len(lines)
        self._idle.clear()
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
        while True:
            if not self._waiting:
                self._idle.set()
            await self._first()
            await self._more()
            await self._score_some(self._take())

    async def drain(self) -> None:
        """Waits until all that has come is answered."""
        await self._idle.wait()

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
        while self._waiting and (not taken or rows + len(self._waiting[0].lines) <= self._max_rows):
            request = self._waiting.popleft()
            self.queued_rows -= len(request.lines)
            if not request.answer.done():
                taken.append(request)
                rows += len(request.lines)
        return taken

    async def _score_some(self, requests: list[_Waiting]) -> None:
        if not requests:
            return
        self._on_batch(sum(len(request.lines) for request in requests))
        try:
            answers = await self._score([request.lines for request in requests])
        except Exception as error:
            for request in requests:
                if not request.answer.done():
                    request.answer.set_exception(error)
            return
        for request, answer in zip(requests, answers, strict=True):
            if not request.answer.done():
                request.answer.set_result(answer)
