"""Answers of dlrm-serve over HTTP to one user with 500 candidates: the user's columns as context, beside repeated.

    python benchmarks/context.py EXPORT LOG [--candidate COLUMN …] [--beside CHECKOUT] [--rounds 5] [--seconds 1] [setting …]

LOG: text in the format of the export's dataset. Each request has the user of one line, and as candidates the columns
``--candidate`` of the lines that follow. The same server answers both forms in turn, which must have the same scores.
``--beside``: another checkout, whose server answers both forms as well. Settings are those of dlrm-serve.
"""

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from serving import REQUESTS, ROOT, ROWS, Server, read_rows, serving, shown_times

from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.inference.predict.parts import raw_spec
from dlrm_app.inference.record import ENCODING
from dlrm_app.table import text_table

CANDIDATE = ["item", *(f"int_{i}" for i in range(1, 4)), *(f"cat_{i}" for i in range(5, 11))]
"""The columns of candidates, of a log that dlrm-generate made with histories."""
FORMS = ("context", "repeated")
Row = dict[str, object]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("export", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("--candidate", nargs="+", default=CANDIDATE)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("settings", nargs="*", default=["threads=1", "limits.body_kib=4096"])
    given = parser.parse_intermixed_args()
    spec = raw_spec(read_manifest(given.export / ENCODING))
    rows = list(islice(read_rows(given.log, spec), ROWS + REQUESTS))
    bodies = dict(zip(FORMS, zip(*two_forms(rows, given.candidate), strict=True), strict=True))
    with ExitStack() as stack:
        servers = [
            (
                str(root),
                form,
                stack.enter_context(serving(root.resolve(), given.export.resolve(), given.settings)),
            )
            for root in (ROOT, given.beside)
            if root is not None
            for form in FORMS
        ]
        refuse_other_scores([(server, bodies[form][0]) for _, form, server in servers])
        for seconds in [0.2] + [given.seconds] * given.rounds:
            for _, form, server in servers:
                server.measure(ROWS, bodies[form], seconds)
    table = [[root, form, *shown_times(server, ROWS)] for root, form, server in servers]
    print(text_table(["server", "user", "p50, ms", "p99, ms", "rows/s", "CPU, ms"], table))


def two_forms(rows: Sequence[Row], candidate: Sequence[str]) -> list[tuple[bytes, bytes]]:
    """Requests with the user of a row and the candidates of those behind it: (with a context, repeated)."""
    requests = []
    for number in range(REQUESTS):
        user = {name: value for name, value in rows[number].items() if name not in candidate}
        shown = [{name: row[name] for name in candidate} for row in rows[number : number + ROWS]]
        forms = {"context": user, "rows": shown}, {"rows": [{**user, **row} for row in shown]}
        requests.append((json.dumps(forms[0]).encode(), json.dumps(forms[1]).encode()))
    return requests


def refuse_other_scores(asked: Sequence[tuple[Server, bytes]]) -> None:
    """Fails unless all servers give the same scores, to the bit."""
    answers = {server.ask(body) for server, body in asked}
    assert len(answers) == 1, "the scores differ"


if __name__ == "__main__":
    main()
