"""Answers of dlrm-serve over HTTP: the time of one row, and rows a second of requests of 500 rows.

    python benchmarks/serving.py EXPORT LOG [--beside CHECKOUT] [--rounds 5] [--seconds 1] [batch.wait_ms=0 …]

LOG: text in the format of the export's dataset, whose first lines are the rows. ``--beside``: the root of another
checkout, whose server answers the same requests in turn with this one's. One client waits for each answer. CPU time
is that of the server's process; other work on the machine changes it least. Settings are those of dlrm-serve.
"""

import argparse
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.inference.predict.parts import raw_spec
from dlrm_app.inference.record import ENCODING
from dlrm_app.logs.spec import LogColumn, Spec
from dlrm_app.table import text_table

ROOT = Path(__file__).parents[1]
ROWS, REQUESTS = 500, 100
"""Rows of a large request; different requests of each size."""
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("export", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("settings", nargs="*", default=["threads=1"])
    given = parser.parse_intermixed_args()
    rows = list(islice(read_rows(given.log, raw_spec(read_manifest(given.export / ENCODING))), 20 * ROWS))
    bodies = {size: requests_of(rows, size) for size in (1, ROWS)}
    with ExitStack() as stack:
        servers = [
            stack.enter_context(serving(root.resolve(), given.export.resolve(), given.settings))
            for root in (ROOT, given.beside)
            if root is not None
        ]
        for size, seconds in [(1, 0.2), (ROWS, 0.2)] + [
            (1, given.seconds),
            (ROWS, given.seconds),
        ] * given.rounds:
            for server in servers:
                server.measure(size, bodies[size], seconds)
    print_table(servers)


def read_rows(log: Path, spec: Spec) -> Iterator[dict[str, object]]:
    """The rows of ``log`` as JSON has them."""
    with log.open(encoding="utf-8") as file:
        for line in islice(file, int(spec.header), None):
            fields = line.rstrip("\n").split(spec.delimiter)
            yield {
                column.name: value_of(text, column)
                for column, text in zip(spec.columns, fields, strict=True)
                if column.role in ("dense", "sparse", "element_weights", "time")
            }


def value_of(text: str, column: LogColumn) -> object:
    if column.separator is not None:
        return [number_of(item, column) for item in text.split(column.separator)] if text else []
    return number_of(text, column) if text else None


def number_of(text: str, column: LogColumn) -> object:
    if column.role == "element_weights" or column.kind in ("float", "score"):
        return float(text)
    return int(text) if column.kind == "integer" else text


def requests_of(rows: Sequence[dict[str, object]], size: int) -> list[bytes]:
    every = cycle(rows)
    return [json.dumps({"rows": list(islice(every, size))}).encode() for _ in range(REQUESTS)]


@dataclass
class Server:
    """A running server; ``seconds``: size of a request → times of all answers; ``cpu``: CPU seconds of all."""

    root: Path
    process: subprocess.Popen[str]
    connection: http.client.HTTPConnection
    seconds: dict[int, list[float]] = field(default_factory=dict)
    cpu: dict[int, float] = field(default_factory=dict)

    def measure(self, size: int, bodies: Sequence[bytes], seconds: float) -> None:
        """Asks for ``seconds``. The first measurement of each size only warms up."""
        times, before, end = [], self._cpu_seconds(), time.perf_counter() + seconds
        for body in cycle(bodies):
            start = time.perf_counter()
            self.ask(body)
            times.append(time.perf_counter() - start)
            if time.perf_counter() > end:
                break
        if size in self.seconds:
            self.seconds[size] += times
            self.cpu[size] += self._cpu_seconds() - before
        else:
            self.seconds[size], self.cpu[size] = [], 0.0

    def ask(self, body: bytes) -> bytes:
        """The answer to a request."""
        self.connection.request("POST", "/score", body, {"content-type": "application/json"})
        answer = self.connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        return text

    def _cpu_seconds(self) -> float:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / TICKS


@contextmanager
def serving(root: Path, export: Path, settings: Sequence[str]) -> Iterator[Server]:
    """Runs the server of the checkout at ``root``."""
    run = [sys.executable, "-m", "dlrm_app.cli", "serve", f"model={export}", "port=0", *settings]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(run, stdout=subprocess.PIPE, text=True, cwd=root, env=environment) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:(\d+)/score", process.stdout.readline())
            assert found, "the server did not start"
            yield Server(root, process, http.client.HTTPConnection("127.0.0.1", int(found[1])))
        finally:
            process.kill()


def print_table(servers: Sequence[Server]) -> None:
    rows = [
        [str(server.root), f"{size:,}", *shown_times(server, size)]
        for server in servers
        for size in server.seconds
    ]
    print(text_table(["server", "rows", "p50, ms", "p99, ms", "rows/s", "CPU, ms"], rows))


def shown_times(server: Server, size: int) -> list[str]:
    """p50 and p99 in ms, rows/s, and CPU time of a request in ms, of requests of ``size`` rows."""
    ordered = sorted(server.seconds[size])
    return [
        f"{1000 * statistics.median(ordered):.2f}",
        f"{1000 * ordered[int(0.99 * len(ordered))]:.2f}",
        f"{size * len(ordered) / sum(ordered):,.0f}",
        f"{1000 * server.cpu[size] / len(ordered):.2f}",
    ]


if __name__ == "__main__":
    main()
