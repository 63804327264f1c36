"""CPU time of the parts of a request with one user and 500 candidates, without HTTP: as context, and repeated.

    python benchmarks/context_parts.py EXPORT LOG [--candidate COLUMN …] [--rounds 3]

EXPORT, LOG and ``--candidate`` as for context.py. The last lines are the model's time for the same rows without the ids that
all rows share: the most that looking them up once could save.
"""

import argparse
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from context import CANDIDATE, FORMS, two_forms
from serving import REQUESTS, ROWS, read_rows

from dlrm_app.inference.exported_model import ExportedModel, check_inputs, open_export
from dlrm_app.inference.formats import Inputs
from dlrm_app.inference.predict.parts import raw_spec
from dlrm_app.inference.raw_rows import RawRows
from dlrm_app.inference.scoring_model import to_inputs
from dlrm_app.inference.serve.request import JsonRows
from dlrm_app.loader.batch import BatchMaker
from dlrm_app.loader.rows import Ranges
from dlrm_app.table import text_table

PARTS = ("JSON read and checked", "Arrow's tables", "encoded", "batch", "ids checked", "model")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("export", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("--candidate", nargs="+", default=CANDIDATE)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    pyarrow.set_cpu_count(1)
    logging.disable(logging.WARNING)
    export = open_export(given.export)
    spec = raw_spec(export.encoding)
    bodies = zip(
        *two_forms(list(islice(read_rows(given.log, spec), ROWS + REQUESTS)), given.candidate), strict=True
    )
    table = []
    for form, asked in zip(FORMS, bodies, strict=True):
        score = parts_of(export)
        for body in asked:
            *_, inputs = score(body)  # warms up
        times = [[*seconds] for _ in range(given.rounds) for body in asked for *seconds, _ in [score(body)]]
        medians = [1000 * statistics.median(each) for each in zip(*times, strict=True)]
        table.append([form, *(f"{each:.2f}" for each in (*medians, sum(medians)))])
        table.append(
            [f"{form}, without the shared ids", *[""] * 5, f"{model_time(export, own_ids(inputs)):.2f}", ""]
        )
    print(text_table(["user", *PARTS, "all, ms"], table))


def parts_of(export: ExportedModel) -> Callable[[bytes], list[Any]]:
    """A function from a request to the seconds of PARTS, and the model's inputs."""
    requests = JsonRows(raw_spec(export.encoding))
    raw_rows = RawRows(requests.spec, export.encoding, export.features)

    def steps(body: bytes) -> Iterator[Any]:
        request = requests.read(body, ROWS)
        yield
        table, shared = requests.tables(request.rows, request.context)
        yield
        ((rows, _, _),) = raw_rows.read(table, shared)
        yield
        maker = BatchMaker(export.encoding, export.features, len(rows))
        (batch,) = maker.make(Ranges([rows], np.array([[0, len(rows), 0]]), len(rows), 1))
        inputs = to_inputs(batch)
        yield
        check_inputs(inputs, export.record)
        yield
        export.run(inputs)
        yield inputs

    def score(body: bytes) -> list[Any]:
        times, results = [time.thread_time()], []
        for result in steps(body):
            times.append(time.thread_time())
            results.append(result)
        return [*(end - begin for begin, end in pairwise(times)), results[-1]]

    return score


def own_ids(inputs: Inputs) -> Inputs:
    """``inputs`` without the ids of features that have the same ones in all rows."""
    dense, values, lengths, *weights = inputs
    is_own = torch.tensor(
        [
            len({tuple(ids.tolist()) for ids in torch.split(bag, counts.tolist())}) > 1
            for bag, counts in zip(torch.split(values, lengths.sum(1).tolist()), lengths, strict=True)
        ]
    )
    kept = is_own.repeat_interleave(lengths.sum(1))
    return dense, values[kept], lengths * is_own[:, None], *(each[kept] for each in weights)


def model_time(export: ExportedModel, inputs: Inputs) -> float:
    """The model's CPU time in ms."""
    times = []
    for _ in range(REQUESTS):
        begin = time.thread_time()
        export.run(inputs)
        times.append(time.thread_time() - begin)
    return 1000 * statistics.median(times)


if __name__ == "__main__":
    main()
