"""Clients that send nothing, or a byte now and then, do not hold the server's connections."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
import uvicorn

from dlrm_app.inference.serve.bounded_http import BoundedHttp

SECONDS = 0.2


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def closed_within(first: bytes, then: bytes, seconds: float) -> bytes:
    """What a client hears that sends ``first`` and then, every tenth of the limit, ``then``; fails if it is let go on."""
    settings = uvicorn.Config(
        app, http=BoundedHttp, log_config=None, lifespan="off", timeout_keep_alive=SECONDS
    )  # type: ignore[arg-type]
    settings.load()
    state = uvicorn.server.ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: BoundedHttp(settings, state, {}), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())

    async def send() -> None:
        writer.write(first)
        while not writer.is_closing():
            await asyncio.sleep(SECONDS / 10)
            writer.write(then)

    sending = loop.create_task(send())
    try:
        return await asyncio.wait_for(_all(reader), seconds)
    finally:
        sending.cancel()
        writer.close()
        server.close()


async def _all(reader: asyncio.StreamReader) -> bytes:
    heard = b""
    with suppress(ConnectionError):  # what is written to a closed connection is answered so
        while chunk := await reader.read(1 << 16):
            heard += chunk
    return heard


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nhost: x\r\n", b"a: b\r\n"),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n", b"a"),
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\n", b"a: b\r\n"),
    ],
    ids=["nothing", "headers", "body", "second request"],
)
def test_a_slow_request_ends(first: bytes, then: bytes) -> None:
    heard = asyncio.run(closed_within(first, then, seconds=30))
    assert heard.count(b"ok") == (b"POST" in first or b"\r\n\r\n" in first)
