"""A server before a store: counts requests, and answers some of them wrongly."""

import http.client
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

_OWN_HEADERS = ("transfer-encoding", "connection", "content-length", "date", "server")
_EXPIRED = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"""


@dataclass(frozen=True)
class Fault:
    """``status``: answers with it, and ``headers``. ``cut``: ends the connection after half of the bytes.
    ``flip``: changes the last byte.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    flip: bool = False


@dataclass
class FaultyStore:
    """Passes requests on to the store ``behind``. ``fault``: gives the fault of a request (method, key), if it has one."""

    behind: str
    fault: Callable[[str, str], Fault | None] = lambda method, key: None
    requests: list[tuple[str, str]] = field(default_factory=list)
    """(method, key) of all requests; the key is without its bucket, and empty for lists."""
    is_expired: Callable[[str], bool] = lambda key: False
    """True for an access key that has expired: S3 answers 400 and ExpiredToken."""
    keys: list[str] = field(default_factory=list)
    """The access keys that requests were signed with, in order, once for each time that another one came."""
    given: Counter[str] = field(default_factory=Counter)
    """Key → the bytes that answers to GET have had."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, method: str, key: str) -> int:
        """The number of requests so far whose key matches the expression ``key``."""
        return sum(m == method and re.fullmatch(key, k) is not None for m, k in self.requests)

    @contextmanager
    def running(self) -> Iterator[str]:
        """Yields the endpoint."""
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                store.answer(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_one  # noqa: N815  # names of http.server

            def log_message(self, format: str, *args: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        body = to.rfile.read(int(to.headers.get("content-length") or 0))
        method, key = to.command, unquote(to.path.partition("?")[0].lstrip("/").partition("/")[2])
        signed = re.search(r"Credential=([^/]+)", to.headers.get("authorization", ""))
        with self.lock:
            self.requests.append((method, key))
            if signed and signed[1] not in self.keys[-1:]:
                self.keys.append(signed[1])
            fault = self.fault(method, key) or Fault()
        if signed and self.is_expired(signed[1]):
            _reply(to, 400, {"content-type": "application/xml"}, _EXPIRED, Fault())
            return
        if fault.status:
            _reply(to, fault.status, {**fault.headers}, b"", Fault())
            return
        behind = http.client.HTTPConnection(urlsplit(self.behind).netloc, timeout=120)
        behind.request(method, to.path, body, dict(to.headers.items()))
        answer = behind.getresponse()
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in _OWN_HEADERS}
        size = answer.getheader("content-length") if method == "HEAD" else None
        data = answer.read()
        if method == "GET" and answer.status < 300:
            with self.lock:
                self.given[key] += len(data)
        _reply(to, answer.status, headers, data, fault, size)
        behind.close()


def _reply(
    to: BaseHTTPRequestHandler,
    status: int,
    headers: dict[str, str],
    data: bytes,
    fault: Fault,
    size: str | None = None,
) -> None:
    to.send_response(status)
    for name, value in headers.items():
        to.send_header(name, value)
    to.send_header("content-length", size or str(len(data)))
    to.end_headers()
    if fault.flip:
        data = data[:-1] + bytes([data[-1] ^ 1])
    if fault.cut:
        to.close_connection = True
        data = data[: len(data) // 2]
    to.wfile.write(data)
