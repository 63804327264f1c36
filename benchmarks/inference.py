"""Latency and rows a second of exports, compiled and as TorchScript, from Python and from C++, in one run.

    python benchmarks/inference.py EXPORT … [--cpp build/cpp/dlrm_benchmark] [--checkpoint RUN] [--threads 1] [--seconds 1]

``--checkpoint``: also the eager model of that run, its tables in fp32, which the ratios are of. Rows are those of the
export's reference/, over and over.
"""

import argparse
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from dlrm_app.checkpoint.trained_model import open_trained
from dlrm_app.display.table import text_table
from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.inference.exported_model import LOADERS, Run
from dlrm_app.inference.proof import repeated
from dlrm_app.inference.quantized_tables import table_types
from dlrm_app.inference.record import read_record
from dlrm_app.inference.reference import read_reference
from dlrm_app.inference.scoring_model import Inputs, build_scoring_model

BATCHES = (1, 16, 64, 512, 4096)
Times = dict[int, tuple[float, float]]
"""Rows of a batch → (median, 99th percentile), microseconds."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("exports", nargs="+", type=Path)
    parser.add_argument("--cpp", type=Path)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    with start_runtime(given.threads) as runtime:
        results = list(measured(given, runtime))
    print_table(results)


def measured(given: argparse.Namespace, runtime: Runtime) -> Iterator[tuple[str, Times]]:
    record = read_record(given.exports[0])
    inputs, _ = read_reference(given.exports[0], len(record.dense))
    if given.checkpoint:
        yield "eager fp32", time_batches(eager(given.checkpoint, runtime), inputs, given.seconds)
    for folder in given.exports:
        for name in read_record(folder).formats:
            if name not in LOADERS:
                continue
            file, load = LOADERS[name]
            yield f"{folder.name} {name}, Python", time_batches(load(folder / file), inputs, given.seconds)
        if given.cpp and (folder / "model.pt2").is_file():
            yield f"{folder.name} aoti, C++", time_cpp(given.cpp, folder, given.seconds)


def eager(checkpoint: Path, runtime: Runtime) -> Run:
    trained = open_trained(checkpoint, runtime)
    model = build_scoring_model(trained, table_types(trained.tables, "fp32", {}), "fp32")

    @torch.no_grad()
    def run(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        return model(*inputs)

    return run


def time_batches(run: Run, inputs: Inputs, seconds: float) -> Times:
    times = {}
    for rows in BATCHES:
        batch = repeated(inputs, rows)
        for _ in range(3):
            run(batch)
        taken: list[float] = []
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds or len(taken) < 10:
            before = time.perf_counter()
            run(batch)
            taken.append(1e6 * (time.perf_counter() - before))
        taken.sort()
        times[rows] = (taken[len(taken) // 2], taken[len(taken) * 99 // 100])
    return times


def time_cpp(program: Path, folder: Path, seconds: float) -> Times:
    arguments = [str(program), str(folder), str(seconds), *map(str, BATCHES)]
    lines = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.splitlines()
    values = [json.loads(line) for line in lines]
    return {value["rows"]: (value["p50_us"], value["p99_us"]) for value in values}


def print_table(results: list[tuple[str, Times]]) -> None:
    first = results[0][1]
    rows = [
        [
            name,
            str(batch),
            f"{p50:,.0f}",
            f"{p99:,.0f}",
            f"{1e6 * batch / p50:,.0f}",
            f"{first[batch][0] / p50:.2f}",
        ]
        for name, times in results
        for batch, (p50, p99) in times.items()
    ]
    print(text_table(["", "rows", "p50, µs", "p99, µs", "rows/s", f"of {results[0][0]}"], rows))


if __name__ == "__main__":
    main()
