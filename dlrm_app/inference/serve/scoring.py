"""Scores rows of requests that come at about the same time in one batch, in a thread beside the event loop."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from dlrm_app.checksums import checksum
from dlrm_app.encoding.value_shares import ValueWatch, deviation_text
from dlrm_app.inference.exported_model import ExportedModel, open_export
from dlrm_app.inference.predict.parts import raw_spec
from dlrm_app.inference.predict.scores_file import probabilities
from dlrm_app.inference.raw_rows import RawRows
from dlrm_app.inference.record import RECORD
from dlrm_app.inference.scorer import NO_SCORE, scorer_of_export, unscored
from dlrm_app.inference.serve.request import JsonRows, RequestError, RowProblem, ScoringRequest, bad_rows

logger = logging.getLogger(__name__)

Scores = dict[str, list[float]]
"""A probability for every row of a request, by label; the main label comes first, and is alone if there is one."""
Answer = Scores | RequestError
"""The scores of a request, or the reason why there are none."""
A = TypeVar("A")
"""What a request is answered."""


class ServedExport:
    """Scores requests, many at once, with the model of ``export``. Only one thread may use it at a time.

    ``identity``: the first digits of the checksum of the export's record.
    """

    def __init__(self, export: ExportedModel) -> None:
        self.model = export
        self._scorer = scorer_of_export(export)
        self.spec = raw_spec(export.encoding)
        self.identity = checksum(export.folder / RECORD).removeprefix("sha256:")[:12]
        self.requests = JsonRows(self.spec)
        """Reads the rows of requests."""
        self._encoded = RawRows(self.requests.spec, export.encoding, export.features)

    def start_counting(self) -> None:
        """Counts the values of rows from now on."""
        self._encoded = RawRows(self.requests.spec, self.model.encoding, self.model.features)

    @property
    def watch(self) -> ValueWatch:
        """The values of all rows so far beside the usual ones."""
        return self._encoded.watch

    def score(self, requests: Sequence[ScoringRequest]) -> list[Answer]:
        """Answers each of ``requests``, in order. A bad row affects only its own request.

        Requests without a context are scored together, the others one by one.
        """
        plain = [number for number, request in enumerate(requests) if not request.context]
        apart = [[number] for number, request in enumerate(requests) if request.context]
        answers: dict[int, Answer] = {}
        for numbers in [*([plain] if plain else []), *apart]:
            answers |= zip(numbers, self._score([requests[number] for number in numbers]), strict=True)
        return [answers[number] for number in range(len(requests))]

    def _score(self, requests: Sequence[ScoringRequest]) -> list[Answer]:
        """Answers requests without a context, or a single one that may have one."""
        table, shared = self.requests.tables(
            [row for request in requests for row in request.rows], requests[0].context
        )
        labels = self._scorer.labels or ["click"]
        scores = np.zeros((len(table), len(labels)), np.float64)
        bad: list[RowProblem] = []
        for rows, numbers, rejects in self._encoded.read(table, shared):
            bad += [RowProblem(reject.line, reject.column, reject.reason) for reject in rejects]
            if len(rows):  # as many as there are, not padded: few rows take little time
                logits = self._scorer.of_rows(self.model.encoding, len(rows))(rows)
                bad += [RowProblem(int(number), None, NO_SCORE) for number in numbers[unscored(logits)]]
                scores[numbers] = probabilities(logits).reshape(len(rows), -1)
        if found := self._encoded.watch.news():
            logger.warning(deviation_text(found, "the rows of requests so far"))
        answers: list[Answer] = []
        begin = 0
        for request in requests:
            end = begin + len(request)
            its_bad = [replace(each, row=each.row - begin) for each in bad if begin <= each.row < end]
            columns = zip(labels, scores[begin:end].T.tolist(), strict=True)
            answers.append(bad_rows(its_bad) if its_bad else dict(columns))
            begin = end
        return answers


def open_served(path: Path) -> ServedExport:
    """Verifies and loads the export at ``path``, and scores an empty row once. Raises DlrmError."""
    served = ServedExport(open_export(path.resolve()))
    served.score([ScoringRequest([{}])])  # compiles and reads everything before the first request
    served.start_counting()
    return served


class _Waiting(NamedTuple):
    request: ScoringRequest
    since: float
    answer: "asyncio.Future[Any]"


class Batcher(Generic[A]):
    """Collects requests into batches of up to ``max_rows`` rows for ``score``, while ``run`` runs.

    The first request of a batch waits at most ``max_wait`` seconds for others; a request with more rows is a batch by
    itself. ``on_batch`` is called with the number of rows of each batch.
    """

    def __init__(
        self,
        score: Callable[[Sequence[ScoringRequest]], Awaitable[Sequence[A | RequestError]]],
        *,
        max_rows: int,
        max_wait: float,
        max_queued: int,
        on_batch: Callable[[int], None],
    ) -> None:
        self._score, self._on_batch = score, on_batch
        self._max_rows, self._max_wait, self._max_queued = max_rows, max_wait, max_queued
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self.queued_rows = 0

    async def score(self, request: ScoringRequest, timeout: float) -> A:
        """The answer to a request.

        Raises RequestError for bad rows, a full queue, and after ``timeout`` seconds.
        """
        if self.queued_rows and self.queued_rows + len(request) > self._max_queued:
            raise RequestError(
                503, f"{self.queued_rows:,} rows wait, limits.queued_rows={self._max_queued:,}: try later"
            )
        waiting = _Waiting(request, time.monotonic(), asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self.queued_rows += len(request)
        self._arrived.set()
        try:
            answer: A = await asyncio.wait_for(waiting.answer, timeout)
            return answer
        except asyncio.TimeoutError:
            raise RequestError(
                503, f"not scored within limits.seconds={timeout:g}: try later, or send fewer rows"
            ) from None

    async def run(self) -> None:
        """Scores requests as they come, until it is cancelled."""
        while True:
            while not self._waiting:
                await self._next_arrival()
            until = self._waiting[0].since + self._max_wait
            while self.queued_rows < self._max_rows and (left := until - time.monotonic()) > 0:
                await self._next_arrival(left)
            if requests := self._take():
                await self._answer(requests)

    async def _next_arrival(self, timeout: float | None = None) -> None:
        self._arrived.clear()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._arrived.wait(), timeout)

    def _take(self) -> list[_Waiting]:
        """Takes the first requests that fit into a batch, without those that nobody waits for any more."""
        taken: list[_Waiting] = []
        rows = 0
        while self._waiting and (not taken or rows + len(self._waiting[0].request) <= self._max_rows):
            waiting = self._waiting.popleft()
            self.queued_rows -= len(waiting.request)
            if not waiting.answer.done():
                taken.append(waiting)
                rows += len(waiting.request)
        return taken

    async def _answer(self, taken: list[_Waiting]) -> None:
        self._on_batch(sum(len(each.request) for each in taken))
        answers: Sequence[A | Exception]
        try:
            answers = await self._score([each.request for each in taken])
        except Exception as error:
            answers = [error] * len(taken)
        for waiting, answer in zip(taken, answers, strict=True):
            if waiting.answer.done():  # nobody waits any more
                continue
            if isinstance(answer, Exception):
                waiting.answer.set_exception(answer)
            else:
                waiting.answer.set_result(answer)
