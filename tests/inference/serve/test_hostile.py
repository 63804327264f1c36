"""Clients, files and signals that nobody wishes for: the server answers the others, and its memory stays."""

import http.client
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.commands import wait_until
from tests.inference.serve.running import Client, health, move, running
from tests.inference.serve.test_server import Load, json_rows
from tests.inference.shop import body_of

HEAD = b"POST /score HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(shop: Path) -> Iterator[tuple[Any, int]]:
    with running(f"model={shop}/export", "limits.seconds=3") as started:
        yield started


@pytest.fixture(scope="module")
def roomy(shop: Path) -> Iterator[tuple[Any, int]]:
    """One that takes long bodies."""
    with running(f"model={shop}/export", "limits.body_kib=65536", "limits.seconds=120") as started:
        yield started


def resident(pid: int) -> int:
    """The memory of a process in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def test_a_thousand_connections_leave_room_for_a_request(shop: Path) -> None:
    """Some say nothing, some are in the middle of a request; past limits.connections=1024 the answer is 503."""
    with ExitStack() as stack:
        process, port = stack.enter_context(running(f"model={shop}/export", "limits.seconds=120"))
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=120))
            for _ in range(1000)
        ]
        for number, client in enumerate(clients):
            client.sendall(HEAD[: number % len(HEAD)])
        assert Client(port).score(json_rows()[:2])[0] == 200
        for _ in range(100):
            clients.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=120)))
            clients[-1].sendall(HEAD[:1])
        crowded = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        crowded.request("GET", "/health")
        assert crowded.getresponse().status == 503
        for client in clients:
            client.close()
        wait_until(lambda: is_answered(port), 120, "an answer after they have left")
        assert process.poll() is None


def is_answered(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", "/health")
    return connection.getresponse().status == 200


def test_a_body_of_100_megabytes_is_refused_without_being_kept(server: Any) -> None:
    process, port = server
    Client(port).score(json_rows()[:2])
    before = resident(process.pid)
    for headers in ({"content-length": str(100 << 20)}, {"transfer-encoding": "chunked"}):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        body = (b" " * (1 << 20) for _ in range(100))
        try:
            connection.request(
                "POST", "/score", body, {"content-type": "application/json", **headers},
                encode_chunked="transfer-encoding" in headers,
            )  # fmt: skip
            answer = connection.getresponse()
            assert answer.status == 413
            assert b"limits.body_kib" in answer.read()
        except ConnectionError:  # closed while the rest was sent
            pass
    assert Client(port).score(json_rows()[:2])[0] == 200
    assert resident(process.pid) < before + 30


@pytest.mark.parametrize(
    ("known", "status", "reason"),
    [
        (False, 422, "'c0' is not a column of the model"),
        (True, 400, "'user' is given twice"),
    ],
)
def test_a_context_with_a_million_keys_is_refused(
    roomy: tuple[Any, int], known: bool, status: int, reason: str
) -> None:
    """Of columns that are not there, or of one over and over; others are answered after it, and its memory is given back."""
    process, port = roomy
    names = ("user" if known else f"c{number}" for number in range(1_000_000))
    context = ",".join(f'"{name}":{number % 10}' for number, name in enumerate(names))
    body = f'{{"context":{{{context}}},"rows":[{{}}]}}'.encode()
    Client(port).score(json_rows()[:2])
    before = resident(process.pid)
    for _ in range(3):
        answer = Client(port).ask("POST", "/score", body)
        assert answer[0] == status
        assert reason in answer[1]["error"]
        assert len(answer[1]["error"]) < 500
    assert Client(port).score(json_rows()[:2])[0] == 200
    assert resident(process.pid) < before + 600


def test_rows_with_a_million_keys_are_refused(roomy: tuple[Any, int]) -> None:
    """As one row, and spread over many."""
    _, port = roomy
    for size in (1, 1000):
        names = [[f"c{number}" for number in range(first, 1_000_000, size)] for first in range(size)]
        status, answer = Client(port).score([dict.fromkeys(each, 1) for each in names])
        assert status == 422
        assert "is not a column of the model" in answer["error"]
        assert len(answer["rows"]) <= 8


def test_a_client_that_sends_a_byte_a_second_is_left_to_itself(server: Any) -> None:
    _, port = server
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(HEAD + b"content-length: 100\r\n\r\n")
        began, asked = time.monotonic(), 0
        slow.settimeout(0.05)
        answer = b""
        while not answer and time.monotonic() - began < 10:
            slow.sendall(b" ")
            assert Client(port).score(json_rows()[:2])[0] == 200
            asked += 1
            try:
                answer = slow.recv(1 << 16)
            except TimeoutError:
                time.sleep(0.9)
        assert b" 408 " in answer.splitlines()[0]
        assert 2 < time.monotonic() - began < 6
        assert asked >= 3


@pytest.mark.parametrize("before", [b"", HEAD + b"content-length: 2\r\n\r\n{}"], ids=["first", "second"])
def test_a_client_whose_headers_come_a_byte_a_second_is_left(server: Any, before: bytes) -> None:
    """In its first request, and in the next one of a connection that is kept; others are answered meanwhile."""
    _, port = server
    with socket.create_connection(("127.0.0.1", port), timeout=120) as slow:
        slow.sendall(before)
        if before:
            answer = b""
            while not answer.endswith(b"}"):  # its head and its body may come apart
                answer += slow.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 400 ")
        slow.settimeout(0.5)
        head = iter(HEAD + b"x-more: " + 1000 * b"x")
        wait_until(lambda: is_closed(slow, bytes([next(head)])), 120, "the end of the connection")
        assert Client(port).score(json_rows()[:2])[0] == 200


def is_closed(client: socket.socket, byte: bytes) -> bool:
    """Sends a byte, and waits for an answer for a moment."""
    assert is_answered(client.getpeername()[1])
    try:
        client.sendall(byte)
        answer = client.recv(1 << 16)
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    assert answer == b"", answer
    return True


def test_requests_that_wait_in_a_connection_are_answered(server: Any) -> None:
    """A client may send requests one after another before it reads, and pause between them for less than the limit."""
    _, port = server
    request = HEAD + b"content-length: %d\r\n\r\n" % len(body_of([{}])) + body_of([{}])
    with socket.create_connection(("127.0.0.1", port), timeout=120) as client:
        client.sendall(3 * request + request[:20])
        answers = b""
        while answers.count(b'{"scores":') < 3:
            answers += client.recv(1 << 16)
        client.sendall(request[20:])
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_the_last_of_two_moves_within_a_second_counts(tmp_path: Path, shop: Path, other_shop: Path) -> None:
    """Also after a while in which the link leads nowhere, in which the old export goes on."""
    link = tmp_path / "published"
    move(link, shop)
    with running(f"model={link}/export", "watch.seconds=0.05") as (_, port):
        for target in (other_shop, shop, other_shop):
            move(link, target)
            time.sleep(0.1)
        wait_until(lambda: health(port)["name"].startswith(f"{other_shop.name}/"), 120, "the last move")
        move(link, tmp_path / "nowhere")
        wait_until(lambda: health(port)["failure"] is not None, 120, "a failure")
        assert health(port)["name"].startswith(f"{other_shop.name}/")
        assert Client(port).score(json_rows()[:2])[0] == 200
        move(link, shop)
        wait_until(lambda: health(port)["name"].startswith(f"{shop.name}/"), 120, "the next move")
        assert health(port)["failure"] is None


@pytest.mark.long
def test_a_served_package_may_be_deleted(tmp_path: Path, mixed_export: Path) -> None:
    """Compiled code too."""
    shutil.copytree(mixed_export, tmp_path / "day" / "export")
    with running(f"model={tmp_path}/day/export", "watch.seconds=0.05") as (_, port):
        body = body_of([{}])
        first = Client(port).ask("POST", "/score", body)
        shutil.rmtree(tmp_path / "day")
        wait_until(lambda: health(port)["failure"] is not None, 120, "a failure")
        assert Client(port).ask("POST", "/score", body) == first


@pytest.mark.long
def test_sigterm_during_a_takeover_loses_no_request(tmp_path: Path, shop: Path, other_shop: Path) -> None:
    """At several moments of it."""
    for pause in (0.0, 0.1, 0.3, 0.6):
        link = tmp_path / f"published-{pause}"
        move(link, shop)
        with running(f"model={link}/export", "watch.seconds=null") as (process, port):
            known = Client(port).score(json_rows())[1]["scores"]
            load = Load(port, known)
            wait_until(lambda load=load: load.outcomes["right"] > 20, 120, "answers")  # type: ignore[misc]
            move(link, other_shop)
            process.send_signal(signal.SIGHUP)
            time.sleep(pause)
            load.is_ending.set()
            process.terminate()
            assert process.wait(120) == 0
            load.join()
            assert load.outcomes["lost"] == 0, load.outcomes
