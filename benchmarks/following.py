"""Answers of dlrm-serve while exports take turns: failed requests, the time of an answer, and the server's memory.

    python benchmarks/following.py EXPORT OTHER LOG [--seconds 120] [--changes 30] [--clients 8]

EXPORT, OTHER: exports of the same columns. LOG: text in the format of their dataset, whose first lines are the rows. Clients
ask for one row at a time without a pause, first without changes, then while a link moves between both exports.
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from serving import ROOT, read_rows, requests_of, serving

from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.inference.predict.parts import raw_spec
from dlrm_app.inference.record import ENCODING
from dlrm_app.table import text_table
from dlrm_app.text import bytes_text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("export", "other", "log"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--changes", type=int, default=30)
    parser.add_argument("--clients", type=int, default=8)
    given = parser.parse_args()
    rows = list(islice(read_rows(given.log, raw_spec(read_manifest(given.export / ENCODING))), 1000))
    bodies = requests_of(rows, 1)
    exports = [given.export.resolve(), given.other.resolve()]
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder) / "published"
        move(link, exports[0])
        with serving(ROOT, link, ["threads=1", "watch.seconds=0.5"]) as server:
            port, process = server.connection.port, server.process.pid
            plain = Clients(port, bodies, given.clients)
            time.sleep(given.seconds)
            plain.stop()
            busy, memory = Clients(port, bodies, given.clients), []
            for change in range(1, given.changes + 1):
                move(link, exports[change % 2])
                time.sleep(given.seconds / given.changes)
                memory.append(resident(process))
            busy.stop()
            server.connection.request("GET", "/health")
            print(server.connection.getresponse().read().decode())
    columns = ["", "requests", "failed", "p50, ms", "p99, ms", "longest, ms"]
    print(text_table(columns, [plain.row("no changes"), busy.row(f"{given.changes} changes")]))
    print(f"memory after 3 changes {bytes_text(memory[2])}, at the end {bytes_text(memory[-1])}")


def move(link: Path, target: Path) -> None:
    temporary = link.with_suffix(".partial")
    temporary.symlink_to(target)
    temporary.replace(link)


def resident(process: int) -> int:
    """The memory of a process in bytes."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass
class Clients:
    """Clients that ask without a pause, each over a connection of its own, until they are stopped."""

    port: int
    bodies: Sequence[bytes]
    count: int
    times: list[float] = field(default_factory=list)
    failed: int = 0

    def __post_init__(self) -> None:
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(self.count)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        connection = HTTPConnection("127.0.0.1", self.port)
        for body in islice(cycle(self.bodies), number, None):
            if self._is_over.is_set():
                return
            start = time.perf_counter()
            try:
                connection.request("POST", "/score", body, {"content-type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                self.failed += answer.status != 200
            except OSError:
                self.failed += 1
                connection.close()
            self.times.append(time.perf_counter() - start)

    def row(self, name: str) -> list[str]:
        p50, p99, longest = 1000 * np.percentile(self.times, [50, 99, 100])
        return [
            name,
            f"{len(self.times):,}",
            f"{self.failed:,}",
            f"{p50:.2f}",
            f"{p99:.2f}",
            f"{longest:.0f}",
        ]


if __name__ == "__main__":
    main()
