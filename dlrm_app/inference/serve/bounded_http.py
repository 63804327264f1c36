"""HTTP whose headers have an end: uvicorn's fast parser keeps as many as a client sends."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 1 << 18


class BoundedHttp(HttpToolsProtocol):
    """Answers 400 and closes the connection once a request's headers are longer than MAX_HEAD_BYTES."""

    _is_head = True
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
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
        super().on_message_complete()
