"""Scores rows of requests that come at about the same time in one batch, in a thread beside the event loop."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import torch

from dlrm_app.checksums import checksum
from dlrm_app.encoding.value_shares import ValueWatch, deviation_text
from dlrm_app.inference.exported_model import ExportedModel, open_export
from dlrm_app.inference.predict.parts import raw_spec
from dlrm_app.inference.predict.scores_file import probabilities
from dlrm_app.inference.raw_rows import RawRows
from dlrm_app.inference.record import RECORD
from dlrm_app.inference.scorer import NO_SCORE, scorer_of_export, unscored
from dlrm_app.inference.serve.arrow_bodies import ARROW, TableRequest, read_stream
from dlrm_app.inference.serve.request import JsonRows, RequestError, Row, RowProblem, ScoringRequest, bad_rows

logger = logging.getLogger(__name__)

Scores = dict[str, list[float]]
"""A probability for every row of a request, by label; the main label comes first, and is alone if there is one."""
JSON = "application/json"
RequestedRows = ScoringRequest | TableRequest
Answer = Scores | RequestError
"""The scores of a request, or the reason why there are none."""


class ScoredRequest(NamedTuple):
    """The scores of a request, and the export that gave them: its name, and its identity."""

    scores: Scores
    model: str
    identity: str


A = TypeVar("A")
"""The answer to a request."""


class ServedExport:
    """Scores requests, many at once, with the model of ``export``. Only one thread may use it at a time.

    ``identity``: the first digits of the checksum of the export's record.
    """

    def __init__(self, export: ExportedModel, num_threads: int = 1) -> None:
        self.model = export
        # a compiled package stays loaded as long as a thread that has called it, so each has a thread of its own;
        # OpenMP's number of threads is a setting of each thread
        self.thread = ThreadPoolExecutor(1, "scoring", torch.set_num_threads, (num_threads,))
        """Scores beside the event loop, on ``num_threads`` threads. It ends when nobody has the export any more."""
        self._scorer = scorer_of_export(export)
        self.spec = raw_spec(export.encoding)
        self.identity = checksum(export.folder / RECORD).removeprefix("sha256:")[:12]
        self.labels = [*self._scorer.labels] or ["click"]
        """The labels of scores, the main one first."""
        self.requests = JsonRows(self.spec)
        """Reads the rows of requests."""
        self.readers: dict[str, Callable[[bytes, int], RequestedRows]] = {
            JSON: self.requests.read,
            ARROW: partial(read_stream, spec=self.requests.spec, unread=self.requests.unread),
        }
        """Media type → the reader of its bodies (body, the most rows), which raises RequestError."""
        self._encoded = RawRows(self.requests.spec, export.encoding, export.features)

    def warm_up(self) -> None:
        """Compiles and reads all that requests need, before the first one. The values of these rows are not counted."""
        for value in (None, 1, 0.5, "1"):  # each is of another type in Arrow
            columns = self.requests.spec.columns
            row: Row = {c.name: value if c.separator is None else [value] for c in columns}
            for rows, _, _ in self._encoded.read(self.requests.table([row])):
                if len(rows):
                    self._scorer.of_rows(self.model.encoding, len(rows))(rows)
        self._encoded = RawRows(self.requests.spec, self.model.encoding, self.model.features)

    @property
    def watch(self) -> ValueWatch:
        """The values of all rows so far beside the usual ones."""
        return self._encoded.watch

    def score(self, requests: Sequence[RequestedRows]) -> list[Answer]:
        """Answers each of ``requests``, in order. A bad row affects only its own request.

        Those that are rows alone are scored together, tables and rows with a context one by one.
        """
        are_plain = [isinstance(each, ScoringRequest) and not each.context for each in requests]
        plain = [number for number, is_plain in enumerate(are_plain) if is_plain]
        apart = [[number] for number, is_plain in enumerate(are_plain) if not is_plain]
        answers: dict[int, Answer] = {}
        for numbers in [*([plain] if plain else []), *apart]:
            answers |= zip(numbers, self._score([requests[number] for number in numbers]), strict=True)
        return [answers[number] for number in range(len(requests))]

    def _tables(self, requests: Sequence[RequestedRows]) -> tuple[pa.Table, pa.Table | None]:
        """(the rows of all ``requests``, their context), of those that are scored together."""
        if isinstance(requests[0], TableRequest):
            return requests[0].table, None
        given = [request for request in requests if isinstance(request, ScoringRequest)]
        return self.requests.tables([row for each in given for row in each.rows], given[0].context)

    def _score(self, requests: Sequence[RequestedRows]) -> list[Answer]:
        """Answers requests that are rows alone, or a single one of another kind."""
        table, shared = self._tables(requests)
        labels = self.labels
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


def open_served(path: Path, num_threads: int = 1) -> ServedExport:
    """Verifies and loads the export at ``path``, and scores a few rows. Raises DlrmError."""
    served = ServedExport(open_export(path.resolve()), num_threads)
    served.warm_up()
    return served


class _Waiting(NamedTuple):
    request: RequestedRows
    since: float
    answer: "asyncio.Future[Any]"


class Batcher(Generic[A]):
    """Collects requests into batches of up to ``max_rows`` rows for ``score``, while ``run`` runs.

    The first request of a batch waits at most ``max_wait`` seconds for others; a request with more rows is a batch by
    itself. ``on_batch`` is called with the number of rows of each batch.
    """

    def __init__(
        self,
        score: Callable[[Sequence[RequestedRows]], Awaitable[Sequence[A | RequestError]]],
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

    async def score(self, request: RequestedRows, timeout: float) -> A:
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
