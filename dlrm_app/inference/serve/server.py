"""dlrm-serve: serves an export over HTTP until a signal ends it. Endpoints: /score, /health, /ready, /metrics, /v2/…"""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pyarrow
import torch
import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from dlrm_app.config.serve import ServeConfig
from dlrm_app.encoding.value_shares import ValueWatch
from dlrm_app.errors import DlrmError, Problem
from dlrm_app.inference.serve.arrow_bodies import ARROW, write_stream
from dlrm_app.inference.serve.connections import TimedConnection
from dlrm_app.inference.serve.following import Follower, lower_priority
from dlrm_app.inference.serve.open_inference import Endpoint, OpenInference
from dlrm_app.inference.serve.request import RequestError
from dlrm_app.inference.serve.scoring import (
    JSON,
    Batcher,
    RequestedRows,
    ScoredRequest,
    ServedExport,
    open_served,
)
from dlrm_app.inference.serve.workers import Worker, run_workers
from dlrm_app.text import json_text

logger = logging.getLogger(__name__)
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_FREED_AFTER = 1.0
"""Seconds after another export took over, when no request holds the old one any more."""
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


Say = Callable[[str], None]
"""Shows a line to the user."""


def serve(config: ServeConfig, say: Say) -> None:
    """Serves an export according to ``config``; answers waiting requests before it ends.

    Raises DlrmError if it cannot start.

    ``say`` is called with an example of a request once the server listens.
    """
    # until the loop runs, which looks for another export at once
    signal.signal(signal.SIGHUP, lambda *_: None)
    listening = _listen(config.host, config.port)
    if config.workers == 1:
        _serve(config, say, [listening])
    else:
        run_workers(config.workers, lambda worker: _serve(config, say, [listening, worker.own], worker))


def _serve(config: ServeConfig, say: Say, sockets: list[socket.socket], worker: Worker | None = None) -> None:
    threads = config.threads or max(1, len(os.sched_getaffinity(0)) // config.workers)
    pyarrow.set_cpu_count(threads)
    with ThreadPoolExecutor(1, "opening", torch.set_num_threads, (threads,)) as opening:
        export = opening.submit(open_served, Path(config.model), threads).result()
    follower = Follower(Path(config.model).absolute(), export, threads)
    settings = uvicorn.Config(
        Server(follower, config, worker).application(),
        http=TimedConnection,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        limit_concurrency=config.limits.connections,
        timeout_keep_alive=max(1, int(config.limits.seconds)),
        timeout_graceful_shutdown=int(config.grace_seconds),
    )
    if worker is None or worker.number == 0:
        _announce(config.host, sockets[0].getsockname()[1], export, say)
    if worker is not None:
        worker.say_begun()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises it again after the last answer
    uvicorn.Server(settings).run(sockets=sockets)


def _listen(host: str, port: int) -> socket.socket:
    """Opens the port. It does so before the export is loaded, so that a port in use is refused at once."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        rule = f"cannot be listened at ({error.strerror})"
        cure = "choose another port (0: any that is free), or a host that is this machine's"
        raise DlrmError(Problem(f"host={host} port={port}", rule, cure)) from error


def _announce(host: str, port: int, export: ServedExport, say: Say) -> None:
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    columns = [column for column in export.spec.columns if column.role in ("dense", "sparse", "time")][:3]
    example = json.dumps({"rows": [{column.name: None for column in columns}]})
    logger.info("export %s (%s) is served at %s", export.identity, export.model.record.checkpoint, url)
    say(f"next: curl {url}/score -H 'content-type: {JSON}' -d '{example}'")


class Server:
    """The HTTP endpoints of the export that ``follower`` serves. ``worker``: which of several."""

    def __init__(self, follower: Follower, config: ServeConfig, worker: Worker | None = None) -> None:
        self._worker = worker
        self._follower, self._watch_seconds = follower, config.watch.seconds
        self._limits = config.limits
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter("dlrm_requests", "Requests, by status", ["status"], registry=registry)
        self._seconds = Histogram(
            "dlrm_request_seconds", "Time to an answer", buckets=_SECONDS, registry=registry
        )
        rows = Histogram("dlrm_batch_rows", "Rows scored at once", buckets=_ROWS, registry=registry)
        registry.register(_ServedMetrics(follower))

        async def score(requests: Sequence[RequestedRows]) -> list[ScoredRequest | RequestError]:
            serving = follower.serving  # a change in the meantime is for the next batch
            export, loop = serving.export, asyncio.get_running_loop()
            answers = await loop.run_in_executor(export.thread, export.score, requests)
            return [
                each if isinstance(each, RequestError) else ScoredRequest(each, serving.name, export.identity)
                for each in answers
            ]

        self._batcher: Batcher[ScoredRequest]
        self._batcher = batcher = Batcher(
            score,
            max_rows=config.batch.rows,
            max_wait=config.batch.wait_ms / 1000,
            max_queued=config.limits.queued_rows,
            on_batch=rows.observe,
        )
        queued = Gauge("dlrm_queued_rows", "Rows that wait", registry=registry)
        queued.set_function(lambda: batcher.queued_rows)
        self._open = OpenInference(config.name, follower, config.limits.rows, self._ask, self._is_ready)

    def application(self) -> Starlette:
        """The ASGI application; the batcher runs as long as the application."""
        answers = {"/score": self._score, **self._open.answers}
        pages = {"/health": self._health, "/ready": self._ready, "/metrics": self._page, **self._open.pages}
        routes = [
            Route(path, partial(self._counted, each), methods=["POST"]) for path, each in answers.items()
        ]
        routes += [
            Route(path, partial(self._refusing, each), methods=["GET"]) for path, each in pages.items()
        ]
        return Starlette(routes=routes, lifespan=self._running)

    @asynccontextmanager
    async def _running(self, _: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(work) for work in (self._batcher.run(), self._follow())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            self._follower.close()
            logger.info("stopped; all waiting requests were answered")

    async def _follow(self) -> None:
        """Looks for another export every ``watch.seconds``, whenever SIGHUP comes, and soon after one took over."""
        loop, wanted = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGHUP, wanted.set)
        while True:
            wanted.clear()
            has_changed = False
            try:
                with ThreadPoolExecutor(1, "follower", _be_modest) as thread:
                    has_changed = await loop.run_in_executor(thread, self._follower.look)
            except Exception:  # a bug here must not end the watch: the old export goes on
                logger.exception("looking for another export failed")
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(wanted.wait(), _FREED_AFTER if has_changed else self._watch_seconds)

    async def _refusing(self, endpoint: Endpoint, request: Request) -> Response:
        try:
            return await endpoint(request)
        except RequestError as refused:
            rows = {"rows": [asdict(problem) for problem in refused.problems]} if refused.problems else {}
            return _json(refused.status, {"error": refused.reason, **rows})
        except Exception:  # a bug ends one request, not the server
            logger.exception("a request failed")
            return _json(500, {"error": "the server failed; its log says why"})

    async def _counted(self, endpoint: Endpoint, request: Request) -> Response:
        started = time.monotonic()
        response = await self._refusing(endpoint, request)
        self._requests.labels(response.status_code).inc()
        self._seconds.observe(time.monotonic() - started)
        return response

    async def _score(self, request: Request) -> Response:
        kind = _media_type(request.headers.get("content-type", ""))
        if kind not in (readers := self._follower.serving.export.readers):
            rule = "the body must be JSON or a stream of Arrow"
            raise RequestError(415, f"{rule}: send the header content-type: {' or '.join(readers)}")
        found = await self._ask(request, lambda body, export: export.readers[kind](body, self._limits.rows))
        if ARROW in map(_media_type, request.headers.get("accept", "").split(",")):
            return Response(write_stream(found.scores), 200, {"x-model": found.model}, ARROW)
        main, *others = found.scores.items()
        answer: dict[str, object] = {"scores": main[1], **({"labels": dict(others)} if others else {})}
        return _json(200, answer, {"x-model": found.model})

    async def _ask(
        self, request: Request, read: Callable[[bytes, ServedExport], RequestedRows]
    ) -> ScoredRequest:
        """The scores of the rows that ``read`` finds in the body. Raises RequestError."""
        seconds = self._limits.seconds
        if request.headers.get("content-encoding", "identity") != "identity":
            raise RequestError(415, "the body is compressed: send it without content-encoding")
        try:
            body = await asyncio.wait_for(self._body(request), seconds)
        except asyncio.TimeoutError:
            raise RequestError(408, f"the body did not come within limits.seconds={seconds:g}") from None
        except ClientDisconnect:  # for the metrics; nobody reads the answer
            raise RequestError(400, "the client left before the body was whole") from None
        return await self._batcher.score(read(body, self._follower.serving.export), seconds)

    async def _body(self, request: Request) -> bytes:
        limit, body = self._limits.body_kib << 10, bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise RequestError(413, f"the body is longer than limits.body_kib={limit >> 10} KiB")
        return bytes(body)

    async def _health(self, _: Request) -> Response:
        serving = self._follower.serving
        record = serving.export.model.record
        served = {"export": serving.export.identity, "checkpoint": record.checkpoint, "step": record.step}
        served |= {"name": serving.name, "since": round(serving.since, 3)}
        changes = {"changes": serving.changes, "failures": serving.failures, "failure": serving.failure}
        return _json(200, served | changes)

    async def _ready(self, _: Request) -> Response:
        is_ready = self._is_ready()
        return _json(200 if is_ready else 503, {"ready": is_ready})

    def _is_ready(self) -> bool:
        return self._batcher.queued_rows < self._limits.queued_rows

    async def _page(self, request: Request) -> Response:
        page, worker = generate_latest(self._registry), self._worker
        # its own port has its own metrics
        if worker is not None and request.scope["server"][1] != worker.port:
            page = await asyncio.get_running_loop().run_in_executor(None, worker.metrics_of_all, page)
        return Response(page, media_type="text/plain; version=0.0.4")


class _ServedMetrics(Collector):
    """Metrics of the export that is served, and of the values in requests since then, by column."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def collect(self) -> Iterator[Metric]:
        serving = self._follower.serving
        export = GaugeMetricFamily(
            "dlrm_export", "1 for the export that is served", labels=["identity", "name"]
        )
        export.add_metric([serving.export.identity, serving.name], 1)
        since = GaugeMetricFamily("dlrm_export_since_seconds", "When it took over, since 1970", serving.since)
        changes = CounterMetricFamily("dlrm_export_changes", "Exports that took over", serving.changes)
        failures = CounterMetricFamily("dlrm_export_failures", "Exports that could not", serving.failures)
        yield from (export, since, changes, failures)
        yield from _value_metrics(serving.export.watch)


def _value_metrics(watch: ValueWatch) -> Iterator[Metric]:
    values = CounterMetricFamily("dlrm_values", "Values that are not missing", labels=["column"])
    missing = CounterMetricFamily("dlrm_missing", "Rows without a value", labels=["column"])
    unseen = CounterMetricFamily("dlrm_unseen", "Values that training has not seen", labels=["column"])
    usual = GaugeMetricFamily("dlrm_usual_unseen", "Their usual share", labels=["column"])
    for name, counts in watch.counter.counts().items():
        values.add_metric([name], counts.values)
        missing.add_metric([name], counts.missing)
        unseen.add_metric([name], counts.unseen)
        if (share := watch.usual.get(name, counts).unseen_share) is not None:
            usual.add_metric([name], share)
    yield from (values, missing, unseen, usual)


def _be_modest() -> None:
    """Opening an export leaves the cores to requests."""
    torch.set_num_threads(1)
    lower_priority()


def _media_type(header: str) -> str:
    """The media type in a header, without its parameters."""
    return header.partition(";")[0].strip().lower()


def _json(status: int, value: dict[str, object], more: dict[str, str] | None = None) -> Response:
    headers = {**(more or {}), **({"retry-after": "1"} if status == 503 else {})}
    return Response(json_text(value), status, headers, JSON)
