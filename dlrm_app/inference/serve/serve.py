"""dlrm-serve: an export behind HTTP until a signal ends it."""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path

import uvicorn

from dlrm_app.config.serve import ServeConfig
from dlrm_app.errors import DlrmError
from dlrm_app.inference.serve.app import Server, make_app
from dlrm_app.inference.serve.batcher import Batcher
from dlrm_app.inference.serve.bounded_http import BoundedHttp
from dlrm_app.inference.serve.metrics import ServerMetrics
from dlrm_app.inference.serve.scorer import Scorer, ScorerSettings
from dlrm_app.inference.serve.scoring_process import Served
from dlrm_app.inference.serve.watch import Watch

logger = logging.getLogger(__name__)
_PATIENCE_SECONDS = 60.0


def serve(config: ServeConfig) -> None:
    """Serves as ``config`` says; answers what has come before it ends. Raises DlrmError where it cannot begin."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to exchange
    listening = _listen(config)
    metrics = ServerMetrics()
    settings = scorer_settings(config, metrics)
    watch = Watch(Path(config.model), lambda path: Scorer.start(path, settings), metrics)
    server = Server(config, watch, metrics)
    _Uvicorn(config, server, listening).run(sockets=[listening])


def scorer_settings(config: ServeConfig, metrics: ServerMetrics) -> ScorerSettings:
    """What each scorer has of ``config``."""
    batcher = partial(
        Batcher,
        max_rows=config.batch.rows,
        max_wait=config.batch.wait_ms / 1000,
        max_queued=config.limits.queued_rows,
        on_batch=metrics.scored,
    )
    return ScorerSettings(
        threads=config.threads or len(os.sched_getaffinity(0)),
        capacity=max(config.batch.rows, config.limits.rows),
        patience=max(_PATIENCE_SECONDS, config.limits.seconds),
        batcher=batcher,
    )


def _end_well(*_: object) -> None:
    sys.exit(0)


def _listen(config: ServeConfig) -> socket.socket:
    """Before anything is loaded, so that a port that is taken is told at once."""
    try:
        family = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((config.host, config.port), family=family, backlog=2048)
    except OSError as error:
        raise DlrmError(
            f"cannot listen at host={config.host} port={config.port}: {error.strerror}; choose another port (0: any that "
            "is free), or a host that is this machine's"
        ) from error


def _announce(config: ServeConfig, listening: socket.socket, served: Served) -> None:
    host = f"[{config.host}]" if ":" in config.host else config.host
    url = f"http://{host}:{listening.getsockname()[1]}"
    columns = [column for column in served.spec.columns if column.role in ("dense", "sparse")][:3]
    example = json.dumps({"rows": [{column.name: None for column in columns}]})
    logger.info("export %s (%s) is served at %s", served.identity, served.checkpoint, url)
    print(f"next: curl {url}/score -H 'content-type: application/json' -d '{example}'", flush=True)


class _Uvicorn(uvicorn.Server):
    """Loads the export before it answers; looks for another one on SIGHUP."""

    def __init__(self, config: ServeConfig, server: Server, listening: socket.socket) -> None:
        settings = uvicorn.Config(
            make_app(server),
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            http=BoundedHttp,
            limit_concurrency=config.limits.connections,
            timeout_keep_alive=max(1, int(config.limits.seconds)),
            timeout_graceful_shutdown=int(config.grace_seconds),
        )
        super().__init__(settings)
        self._server = server
        self._listening = listening

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await self._server.watch.start()
        _announce(self._server.config, self._listening, self._server.watch.current.served)
        signal.signal(signal.SIGTERM, _end_well)  # uvicorn raises it again once all is answered
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._server.watch.ask)
        await super().startup(sockets)
