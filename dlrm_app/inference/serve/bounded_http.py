"""HTTP whose requests have an end: uvicorn's fast parser waits for a request, and keeps its headers, as long as a client likes."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 1 << 18


class BoundedHttp(HttpToolsProtocol):
    """Closes connections that have not sent a request, whole, within twice ``timeout_keep_alive``.

    Else a few slow clients would hold all ``limit_concurrency`` of them. Twice, for the application answers a slow body
    after once. Headers longer than MAX_HEAD_BYTES are answered with 400.
    """

    _is_head = True
    _head_bytes = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None:  # the first bytes of the connection's next request
            self._expect_request()
        super().data_received(data)
        if self._is_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response(f"the headers are longer than {MAX_HEAD_BYTES} bytes")

    def on_headers_complete(self) -> None:
        self._is_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_head, self._head_bytes = True, 0
        self._forget_deadline()
        super().on_message_complete()

    def _expect_request(self) -> None:
        self._deadline = self.loop.call_later(2 * self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
