"""Scores rows of requests that come at about the same time in one batch, in a thread beside the event loop."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dlrm_app.checksums import checksum
from dlrm_app.encoding.encoder import Encoded, Encoder
from dlrm_app.inference.exported_model import ExportedModel, open_export
from dlrm_app.inference.formats import Inputs
from dlrm_app.inference.predict.parts import raw_spec
from dlrm_app.inference.predict.scores_file import probabilities
from dlrm_app.inference.record import RECORD
from dlrm_app.inference.scorer import scorer_of_export
from dlrm_app.inference.serve.request import JsonRows, RequestError, RowProblem, bad_rows
from dlrm_app.logs.parser import Parser, without
from dlrm_app.logs.rejects import RejectedLine
from dlrm_app.logs.sources.text_units import PADDING

Scores = dict[str, list[float]]
"""A probability for every row of a request, by label; the main label comes first, and is alone if there is one."""
Answer = Scores | RequestError
"""The scores of a request, or the reason why there are none."""
ScoreRequests = Callable[[Sequence[list[str]]], Awaitable[list[Answer]]]
"""Scores several requests, each a list of lines, and returns an answer for each."""


class ServedExport:
    """Scores requests, many at once, with ``export``. Only one thread may use it at a time.

    ``identity``: the first digits of the checksum of the export's record. ``capacity``: rows of all requests that are
    scored together.
    """

    def __init__(self, export: ExportedModel, capacity: int) -> None:
        self.export = export
        self._scorer = scorer_of_export(export)
        self.spec = raw_spec(export.encoding)
        self.identity = checksum(export.folder / RECORD).removeprefix("sha256:")[:12]
        self.rows = JsonRows(self.spec)
        """Turns a request's rows into lines."""
        spec, manifest = self.rows.line_spec, export.encoding
        self._capacity = capacity
        self._parser = Parser(spec, capacity)
        self._encoder = Encoder(spec, manifest.dense, manifest.sparse, manifest.folder)
        position = self._encoder.schema.get_field_index
        self._dense = [position(name) for name in export.record.dense]
        self._features = [position(name) for name in export.features]
        weights = {column.name: column.weights for column in manifest.sparse if column.weights}
        self._weights = {
            position(name): position(weights[name]) for name in export.features if name in weights
        }
        """Place of a feature's ids → that of their weights."""

    def score(self, requests: Sequence[list[str]]) -> list[Answer]:
        """Answers each of ``requests``, in order. A bad line affects only its own request."""
        lines = [line for request in requests for line in request]
        rejects = self._parse(lines)
        encoded = self._encoder.encode(self._parser.take())
        labels = self._scorer.labels or ["click"]
        scores = np.zeros((len(lines), len(labels)), np.float64)
        if len(encoded):
            numbers = without(0, len(lines), [reject.line for reject in rejects])
            inputs = self._inputs(encoded)
            found = probabilities(self._scorer.logits(inputs).numpy())
            scores[numbers] = found.reshape(len(numbers), -1)
        answers: list[Answer] = []
        begin = 0
        for request in requests:
            end = begin + len(request)
            wrong = [RowProblem(r.line - begin, r.column, r.reason) for r in rejects if begin <= r.line < end]
            columns = zip(labels, scores[begin:end].T.tolist(), strict=True)
            answers.append(bad_rows(wrong) if wrong else dict(columns))
            begin = end
        return answers

    def _parse(self, lines: Sequence[str]) -> list[RejectedLine]:
        """Reads ``lines`` into the parser. Returns the rejected ones, numbered from 0."""
        text = np.frombuffer("\n".join([*lines, ""]).encode("utf-8") + bytes(PADDING), np.uint8)
        at = count = 0
        rejects: list[RejectedLine] = []
        while at < len(text) - PADDING:  # the parser stops when it is full
            at, num_lines, its_rejects = self._parser.parse(text, at, len(text) - PADDING, self._capacity)
            rejects += [reject._replace(line=count + reject.line) for reject in its_rejects]
            count += num_lines
        return rejects

    def _inputs(self, encoded: Encoded) -> Inputs:
        dense = np.empty((len(encoded), len(self._dense)), np.float32)
        for column, position in enumerate(self._dense):
            dense[:, column] = encoded.values(position)
        bags = [encoded.bags(position) for position in self._features]
        values, lengths = np.concatenate([ids for ids, _ in bags]), np.stack([counts for _, counts in bags])
        inputs = torch.from_numpy(dense), torch.from_numpy(values), torch.from_numpy(lengths)
        if not self._weights:
            return inputs
        weights = [
            encoded.bags(self._weights[place])[0] if place in self._weights else np.ones(len(ids), np.float32)
            for place, (ids, _) in zip(self._features, bags, strict=True)
        ]
        return *inputs, torch.from_numpy(np.concatenate(weights))


def open_served(path: Path, capacity: int) -> ServedExport:
    """Verifies and loads the export at ``path``, and scores an empty row once. Raises DlrmError."""
    served = ServedExport(open_export(path.resolve()), capacity)
    served.score([served.rows.lines([{}])])  # compiles and reads everything before the first request
    return served


class _Waiting(NamedTuple):
    lines: list[str]
    since: float
    answer: "asyncio.Future[Scores]"


class Batcher:
    """Collects requests into batches of up to ``max_rows`` rows for ``score``, while ``run`` runs.

    The first request of a batch waits at most ``max_wait`` seconds for others; a request with more rows is a batch by
    itself. ``on_batch`` is called with the number of rows of each batch.
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
        self._score, self._on_batch = score, on_batch
        self._max_rows, self._max_wait, self._max_queued = max_rows, max_wait, max_queued
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self.queued_rows = 0

    async def score(self, lines: list[str], timeout: float) -> Scores:
        """The probabilities of each of ``lines``.

        Raises RequestError for bad rows, a full queue, and after ``timeout`` seconds.
        """
        if self.queued_rows and self.queued_rows + len(lines) > self._max_queued:
            raise RequestError(
                503, f"{self.queued_rows:,} rows wait, limits.queued_rows={self._max_queued:,}: try later"
            )
        request = _Waiting(lines, time.monotonic(), asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self.queued_rows += len(lines)
        self._arrived.set()
        try:
            return await asyncio.wait_for(request.answer, timeout)
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
        """Waits for a request, at most ``timeout`` seconds."""
        self._arrived.clear()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._arrived.wait(), timeout)

    def _take(self) -> list[_Waiting]:
        """Takes the first requests that fit into a batch, without those that nobody waits for any more."""
        taken: list[_Waiting] = []
        rows = 0
        while self._waiting and (not taken or rows + len(self._waiting[0].lines) <= self._max_rows):
            request = self._waiting.popleft()
            self.queued_rows -= len(request.lines)
            if not request.answer.done():
                taken.append(request)
                rows += len(request.lines)
        return taken

    async def _answer(self, requests: list[_Waiting]) -> None:
        self._on_batch(sum(len(request.lines) for request in requests))
        answers: Sequence[Answer | Exception]
        try:
            answers = await self._score([request.lines for request in requests])
        except Exception as error:
            answers = [error] * len(requests)
        for request, answer in zip(requests, answers, strict=True):
            if request.answer.done():  # nobody waits any more
                continue
            if isinstance(answer, Exception):
                request.answer.set_exception(answer)
            else:
                request.answer.set_result(answer)
