"""Connections of clients, closed unless the headers of a request arrive in time."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class TimedConnection(HttpToolsProtocol):
    """A connection whose next request must have whole headers within the time that it may be idle.

    uvicorn's own clock starts with the first answer and stops with the first byte of the next request, so that
    whoever sends a byte now and then could keep all connections of the server.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._deadline: asyncio.TimerHandle | None = None
        self._num_unanswered = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's
        super().connection_made(transport)
        self._await_headers()

    def on_headers_complete(self) -> None:
        self._stop()
        self._num_unanswered += 1
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._num_unanswered -= 1
        if not self._num_unanswered:  # a client may send the next request before it has its answer
            self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _await_headers(self) -> None:
        self._stop()
        self._deadline = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
