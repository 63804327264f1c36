"""dlrm-serve: an export behind HTTP until a signal ends it."""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from pathlib import Path

import torch
import uvicorn

from dlrm_app.config.serve import ServeConfig
from dlrm_app.distributed.runtime import quiet_libraries
from dlrm_app.errors import DlrmError
from dlrm_app.inference.serve.app import Server, make_app
from dlrm_app.inference.serve.bounded_http import BoundedHttp
from dlrm_app.inference.serve.metrics import ServerMetrics
from dlrm_app.inference.serve.served_export import ServedExport, open_served
from dlrm_app.inference.serve.watch import Watch

logger = logging.getLogger(__name__)


def serve(config: ServeConfig) -> None:
    """Serves as ``config`` says; answers what has come before it ends. Raises DlrmError where it cannot begin."""
    quiet_libraries()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to exchange
    listening = _listen(config)
    threads = config.threads or len(os.sched_getaffinity(0))

    def set_up_thread() -> None:
        torch.set_num_threads(threads)  # each thread of Python has its own number

    metrics = ServerMetrics()
    capacity = max(config.batch.rows, config.limits.rows)
    watch = Watch(
        Path(config.model), lambda path: open_served(path, capacity), set_up_thread, metrics.swapped
    )
    server = Server(config, watch, metrics, set_up_thread)
    _announce(config, listening, watch.current)
    signal.signal(signal.SIGTERM, _end_well)  # uvicorn raises it again once all is answered
    try:
        _Uvicorn(config, server).run(sockets=[listening])
    finally:
        logger.info("ended; requests that had come were answered")


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


def _announce(config: ServeConfig, listening: socket.socket, served: ServedExport) -> None:
    host = f"[{config.host}]" if ":" in config.host else config.host
    url = f"http://{host}:{listening.getsockname()[1]}"
    columns = [column for column in served.spec.columns if column.role in ("dense", "sparse")][:3]
    example = json.dumps({"rows": [{column.name: None for column in columns}]})
    logger.info("export %s (%s) is served at %s", served.identity, served.export.record.checkpoint, url)
    print(f"next: curl {url}/score -H 'content-type: application/json' -d '{example}'", flush=True)


class _Uvicorn(uvicorn.Server):
    """Looks for another export on SIGHUP."""

    def __init__(self, config: ServeConfig, server: Server) -> None:
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

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._server.watch.ask)
        await super().startup(sockets)
