"""The command behind real sockets: right answers under load, malformed requests refused, all answered at the end."""

import http.client
import re
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dlrm_app.inference.serve.request import RequestError
from dlrm_app.inference.serve.scoring import ServedExport, open_served
from tests.commands import Typed, wait_until
from tests.inference.serve.running import Client, running
from tests.inference.shop import HEADER, NUM_TEST, body_of, draw_rows

Row = dict[str, Any]


def json_rows() -> list[Row]:
    """The rows of the test split; what is missing is left out, or null."""
    rows = []
    for number, values in enumerate(draw_rows()[-NUM_TEST:]):
        row = dict(zip(HEADER, values, strict=True))
        row["last_items"] = row["last_items"].split("|") if row["last_items"] else []
        missing = [name for name, value in row.items() if value == ""]
        for name in missing:
            row[name] = None
        rows.append(row if number % 2 else {name: row[name] for name in row if name not in missing})
    return rows


@pytest.fixture(scope="module")
def served(shop: Path) -> ServedExport:
    return open_served(shop / "export")


@pytest.fixture(scope="module")
def scores(served: ServedExport) -> list[float]:
    """The scores of every row of ``json_rows``, all at once."""
    (answer,) = served.score([served.requests.read(body_of(json_rows()), 512)])
    assert not isinstance(answer, RequestError)
    (scores,) = answer.values()
    return scores


def test_json_has_the_scores_of_the_dataset(expected: Any, scores: list[float]) -> None:
    """To the bit, where no product is of so few rows that it is added up in another order."""
    assert np.float32(scores).tolist() == expected.column("score").to_pylist()


def test_a_bad_row_spoils_its_own_request_alone(served: ServedExport, scores: list[float]) -> None:
    rows = json_rows()
    bad = [{**rows[3], "hour": "noon"}]
    requests = [rows[:3], [rows[0], *bad], bad * 2, rows[3:9]]
    answers = served.score([served.requests.read(body_of(request), 512) for request in requests])
    for number, rows_of_it in ((0, slice(3)), (3, slice(3, 9))):
        answer = answers[number]
        assert not isinstance(answer, RequestError)
        assert answer == {"click": pytest.approx(scores[rows_of_it], abs=1e-7)}
    assert [str(answer) for answer in answers[1:3]] == [
        "row 1: hour is 'noon', must be a whole number within ±(2^63 - 1)",
        "row 0: hour is 'noon', must be a whole number within ±(2^63 - 1) (and 1 rows more)",
    ]


@pytest.fixture(scope="module")
def server(shop: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that serves the export, and its port."""
    with running(f"model={shop}/export", "limits.body_kib=64") as started:
        yield started


@pytest.mark.slow
def test_requests_are_answered_or_refused_with_the_reason(server: Any, scores: list[float]) -> None:
    client = Client(server[1])
    rows = json_rows()
    status, answer = client.score(rows[:50])
    assert status == 200
    assert answer["scores"] == pytest.approx(scores[:50], abs=1e-7)
    status, answer = client.score([rows[0], {"price": "cheap"}])
    assert (status, answer["rows"][0]["row"], answer["rows"][0]["column"]) == (422, 1, "price")
    assert client.ask("POST", "/score", b"{")[0] == 400
    assert client.ask("POST", "/score", b"{}", **{"content-type": "text/plain"})[0] == 415
    assert client.ask("GET", "/ready") == (200, {"ready": True})
    page = client.ask("GET", "/metrics")[1]
    assert re.search(r'dlrm_requests_total\{status="200"\} 1\.0\n', page)
    assert client.ask("GET", "/health")[1]["step"] > 0
    status, answer = client.ask("POST", "/score", b" " * (65 << 10))
    assert (status, answer["error"]) == (413, "the body is longer than limits.body_kib=64 KiB")


@pytest.mark.slow
def test_tables_are_bodies_and_answers(server: Any, scores: list[float]) -> None:
    rows, sink = json_rows()[:20], pa.BufferOutputStream()
    table = pa.table({name: [row.get(name) for row in rows] for name in HEADER})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    connection = http.client.HTTPConnection("127.0.0.1", server[1], timeout=20)
    kind = "application/vnd.apache.arrow.stream"
    for body, given in (
        (sink.getvalue().to_pybytes(), kind),
        (body_of(rows), "application/json"),
    ):
        connection.request("POST", "/score", body, {"content-type": given, "accept": f"{kind};q=1, */*"})
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("content-type")) == (200, kind)
        found = pa.ipc.open_stream(answer.read()).read_all()
        assert found["score"].to_pylist() == pytest.approx(scores[:20], abs=1e-7)


def test_a_client_that_disconnects_is_not_a_server_error(server: Any) -> None:
    def answered(status: int) -> float:
        page = Client(server[1]).ask("GET", "/metrics")[1]
        found = re.search(rf'dlrm_requests_total\{{status="{status}"\}} (\S+)', page)
        return float(found[1]) if found else 0

    before = answered(400)
    with socket.create_connection(("127.0.0.1", server[1])) as client:
        head = (
            "POST /score HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
        )
        client.sendall(head.encode() + b'{"rows"')
    wait_until(lambda: answered(400) > before or answered(500) > 0, 30, "an answer")
    assert answered(500) == 0


def test_the_port_is_not_open_to_other_machines(server: Any) -> None:
    listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    assert re.findall(rf" (\w+):{server[1]:04X} 0+:0000 0A", listening) == ["0100007F"]


class Load:
    """Clients that ask without pause until the server is gone, and what became of all they asked."""

    def __init__(self, port: int, known: list[float]) -> None:
        self.outcomes: Counter[str] = Counter()
        self.is_ending = threading.Event()
        self._port, self._known, self._rows = port, known, json_rows()
        self._clients = [threading.Thread(target=self._ask, args=(seed,)) for seed in range(4)]
        for client in self._clients:
            client.start()

    def join(self) -> None:
        for client in self._clients:
            client.join()

    def _ask(self, seed: int) -> None:
        chance, client = np.random.default_rng(seed), Client(self._port)
        while True:
            start = int(chance.integers(NUM_TEST - 4))
            bad = [{"hour": {}}] if chance.random() < 0.05 else []
            try:
                status, answer = client.score([*self._rows[start : start + 4], *bad])
            except (http.client.RemoteDisconnected, ConnectionError):
                self.outcomes["closed" if self.is_ending.is_set() else "lost"] += 1
                return
            self.outcomes[self._judge(start, bool(bad), status, answer)] += 1

    def _judge(self, start: int, is_bad: bool, status: int, answer: Any) -> str:
        if is_bad:
            return "refused" if status == 422 else "wrong"
        is_right = status == 200 and np.allclose(answer["scores"], self._known[start : start + 4], atol=1e-7)
        return "right" if is_right else "wrong"


def test_no_request_is_lost_at_the_end(server: Any, scores: list[float]) -> None:
    process, port = server
    load = Load(port, scores)
    wait_until(lambda: load.outcomes["right"] > 50, 30, "answers")
    load.is_ending.set()
    process.terminate()
    assert process.wait(30) == 0
    load.join()
    assert load.outcomes["refused"] > 0
    assert (load.outcomes["lost"], load.outcomes["wrong"]) == (0, 0), load.outcomes


def test_exports_that_cannot_be_served_are_refused_at_once(typed: Typed) -> None:
    code, text = typed("serve", "model=nowhere", "port=70000", "batch.rows=0")
    assert code == 2
    for message in (
        "model=nowhere is not an export",
        "port must be at least 0",
        "batch.rows must be at least 1",
    ):
        assert message in text
