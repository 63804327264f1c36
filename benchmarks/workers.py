"""Answers of dlrm-serve in one process and in several: rows a second and times of many clients, in turn.

    python benchmarks/workers.py EXPORT LOG [--workers 1 2] [--rows 1 500] [--clients 8] [--rounds 5] [--seconds 4]

LOG: text in the format of the export's dataset, whose first lines are the rows. Each client waits for its answer before it asks
again. All servers run at the same time and are measured one after another; the cores are divided among a server's workers.
"""

import argparse
import time
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import numpy as np
from following import Clients
from serving import ROOT, read_rows, requests_of, serving

from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.inference.predict.parts import raw_spec
from dlrm_app.inference.record import ENCODING
from dlrm_app.table import text_table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("export", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 500])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    spec = raw_spec(read_manifest(given.export / ENCODING))
    rows = list(islice(read_rows(given.log, spec), 5000))
    bodies = {size: requests_of(rows, size) for size in given.rows}
    times: dict[tuple[int, int], list[float]] = {}
    with ExitStack() as stack:
        servers = {
            count: stack.enter_context(
                serving(ROOT, given.export.resolve(), [f"workers={count}", "limits.body_kib=4096"])
            )
            for count in given.workers
        }
        for round_number in range(given.rounds + 1):  # the first one warms up
            for size in given.rows:
                for count, server in servers.items():
                    clients = Clients(server.connection.port, bodies[size], given.clients)
                    time.sleep(given.seconds)
                    clients.stop()
                    assert clients.failed == 0, f"{clients.failed} requests failed"
                    if round_number:
                        times.setdefault((size, count), []).extend(clients.times)
    seconds = given.rounds * given.seconds
    table = [
        [f"{size:,}", str(count), f"{size * len(found) / seconds:,.0f}", *(f"{1000 * each:.2f}" for each in percentiles)]
        for (size, count), found in times.items()
        for percentiles in [np.percentile(found, [50, 99])]
    ]  # fmt: skip
    print(text_table(["rows", "workers", "rows/s", "p50, ms", "p99, ms"], table))


if __name__ == "__main__":
    main()
