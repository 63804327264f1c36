"""The endpoints: /score, /schema, /health, /ready, /metrics."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict

from fastapi import FastAPI, Request, Response

from dlrm_app.config.serve import ServeConfig
from dlrm_app.inference.serve.answers import RequestError
from dlrm_app.inference.serve.json_rows import parse_body
from dlrm_app.inference.serve.metrics import ServerMetrics
from dlrm_app.inference.serve.rate import RateLimit
from dlrm_app.inference.serve.request_schema import request_schema
from dlrm_app.inference.serve.watch import Watch

logger = logging.getLogger(__name__)
_RETRY = (429, 503)
_RETRY_SECONDS = "1"
_JSON = "application/json"


class Server:
    """The state behind the endpoints."""

    def __init__(self, config: ServeConfig, watch: Watch, metrics: ServerMetrics) -> None:
        self.config = config
        self.watch = watch
        self.metrics = metrics
        self._rate = RateLimit(config.limits.requests_per_second)
        metrics.watch(lambda: watch.current)

    @asynccontextmanager
    async def running(self, _: FastAPI) -> AsyncIterator[None]:
        """Watches while the application runs, and ends what scores behind it."""
        watching = asyncio.create_task(self.watch.run(self.config.watch_seconds))
        try:
            yield
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            await self.watch.close()
            logger.info("ended; requests that had come were answered")

    async def answer(self, request: Request) -> Response:
        """POST /score."""
        started = time.monotonic()
        try:
            response = await self._score(request)
        except RequestError as refused:
            response = _refusal(refused)
        except Exception:
            logger.exception("a request failed")
            response = _json(500, {"error": "the server failed; its log says why"})
        self.metrics.answered(response.status_code, time.monotonic() - started)
        return response

    async def _score(self, request: Request) -> Response:
        if not self._rate.admits():
            raise RequestError(
                429,
                f"more than limits.requests_per_second={self.config.limits.requests_per_second:g} requests: try later",
            )
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
            raise RequestError(415, f"the body must be JSON: send the header content-type: {_JSON}")
        try:
            body = await asyncio.wait_for(self._body(request), self.config.limits.seconds)
        except asyncio.TimeoutError:
            raise RequestError(
                408, f"the body did not come within limits.seconds={self.config.limits.seconds:g}"
            ) from None
        rows = parse_body(body, self.config.limits.rows)
        scores = await self.watch.current.score(rows, self.config.limits.seconds)
        return _json(200, {"scores": scores})

    async def _body(self, request: Request) -> bytes:
        limit = self.config.limits.body_kib << 10
        refused = RequestError(
            413, f"the body is longer than limits.body_kib={self.config.limits.body_kib} KiB"
        )
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > limit:
            raise refused
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise refused
        return bytes(body)

    def ready(self) -> Response:
        """GET /ready: whether to send requests here, or the queue is full, or nothing scores."""
        scorer = self.watch.current
        is_ready = not scorer.ended.done() and scorer.queued_rows < self.config.limits.queued_rows
        return _json(200 if is_ready else 503, {"ready": is_ready})

    def health(self) -> Response:
        """GET /health: what is served, and why a newer export, or nothing at all, is not."""
        served = self.watch.current.served
        return _json(
            503 if self.watch.failure else 200,
            {
                "export": served.identity,
                "checkpoint": served.checkpoint,
                "step": served.step,
                "refused": self.watch.refused,
                "failure": self.watch.failure,
            },
        )


def make_app(server: Server) -> FastAPI:
    """The application. The columns of a row change with the export, so /schema tells them, in place of /openapi.json."""
    app = FastAPI(title="dlrm-serve", openapi_url=None, lifespan=server.running)

    @app.post("/score")
    async def score(request: Request) -> Response:
        return await server.answer(request)

    @app.get("/schema")
    async def schema() -> Response:
        return _json(200, request_schema(server.watch.current.served.spec))

    @app.get("/health")
    async def health() -> Response:
        return server.health()

    @app.get("/ready")
    async def ready() -> Response:
        return server.ready()

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(server.metrics.page(), media_type="text/plain; version=0.0.4")

    return app


def _json(status: int, value: dict[str, object]) -> Response:
    headers = {"retry-after": _RETRY_SECONDS} if status in _RETRY else None
    return Response(json.dumps(value), status, headers, _JSON)


def _refusal(refused: RequestError) -> Response:
    value: dict[str, object] = {"error": refused.reason}
    if refused.problems:
        value["rows"] = [asdict(problem) for problem in refused.problems]
    return _json(refused.status, value)
