"""Latency and rows a second of exports, compiled and as TorchScript, from Python and from C++, in one run.

    python benchmarks/inference.py EXPORT … [--cpp build/cpp/dlrm_benchmark] [--onnx RUN] [--threads 1] [--seconds 1]

``--onnx``: also that run's model, its tables in fp32, by onnxruntime (one-hot features alone).
Rows are those of the export's reference/, over and over.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.inference.exported_model import read_reference
from dlrm_app.inference.formats import LOADERS, Forward, Inputs
from dlrm_app.inference.record import read_export
from dlrm_app.inference.scoring_model import CheckpointWeights, ScoringModel
from dlrm_app.inference.verification import repeated
from dlrm_app.runs.checkpoint.load import open_trained
from dlrm_app.table import text_table

BATCHES = (1, 16, 64, 512, 4096)
Times = dict[int, tuple[float, float]]
"""Rows of a batch → (median, 99th percentile), microseconds."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("exports", nargs="+", type=Path)
    parser.add_argument("--cpp", type=Path)
    parser.add_argument("--onnx", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    with start_runtime(given.threads) as runtime:
        results = list(measured(given, runtime))
    print_table(results)


def measured(given: argparse.Namespace, runtime: Runtime) -> Iterator[tuple[str, Times]]:
    record = read_export(given.exports[0])
    inputs, _ = read_reference(given.exports[0], len(record.dense), record.is_weighted)
    if given.onnx:
        yield "onnxruntime fp32", time_batches(onnx(given.onnx, inputs, runtime), inputs, given.seconds)
    for folder in given.exports:
        for name in read_export(folder).formats:
            if name not in LOADERS:
                continue
            file, load = LOADERS[name]
            yield f"{folder.name} {name}, Python", time_batches(load(folder / file), inputs, given.seconds)
        if given.cpp and (folder / "model.pt2").is_file():
            yield f"{folder.name} aoti, C++", time_cpp(given.cpp, folder, given.seconds)


class OneHotTables(nn.Module):
    """The tables' vectors [B, F, D] of one id a feature, by an operator that ONNX has."""

    def __init__(self, weights: list[torch.Tensor]) -> None:
        super().__init__()
        for number, table in enumerate(weights):
            self.register_buffer(f"table{number}", table.float())
        self._num_tables = len(weights)

    def forward(self, sparse: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        values, lengths = sparse
        ids = values.view(lengths.shape)
        tables = [getattr(self, f"table{number}") for number in range(self._num_tables)]
        return torch.stack([F.embedding(ids[f], table) for f, table in enumerate(tables)], dim=1)


def onnx(checkpoint: Path, example: Inputs, runtime: Runtime) -> Forward:
    import onnxruntime

    trained = open_trained(checkpoint, runtime)
    weights = CheckpointWeights(trained)
    tables = [torch.cat([*weights.blocks(table)]) for table in trained.tables for _ in table.features]
    weights.model.sparse_arch = OneHotTables(tables)
    model = ScoringModel(weights.model).eval()
    rows = torch.export.Dim("rows", min=1, max=1 << 20)
    features = example[2].shape[0]
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        shapes = {"dense": {0: rows}, "values": {0: features * rows}, "lengths": {1: rows}}
        path = f"{folder}/model.onnx"
        torch.onnx.export(model, example, path, dynamo=True, dynamic_shapes=shapes, verbose=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = runtime.num_threads
        session = onnxruntime.InferenceSession(path, options)
    names = [each.name for each in session.get_inputs()]
    every = dict(zip(("dense", "values", "lengths"), range(3), strict=True))

    def run(inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        scores, logits = session.run(None, {name: inputs[every[name]].numpy() for name in names})
        return torch.from_numpy(scores), torch.from_numpy(logits)

    difference = (run(example)[0] - model(*example)[0]).abs().max()
    assert difference < 1e-5, difference
    return run


def time_batches(run: Forward, inputs: Inputs, seconds: float) -> Times:
    times = {}
    for rows in BATCHES:
        batch = repeated(inputs, rows)
        times[rows] = time_calls(lambda batch=batch: run(batch), seconds)
    return times


def time_calls(call: Callable[[], object], seconds: float) -> tuple[float, float]:
    """(median, 99th percentile), microseconds."""
    for _ in range(3):
        call()
    taken: list[float] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds or len(taken) < 10:
        before = time.perf_counter()
        call()
        taken.append(1e6 * (time.perf_counter() - before))
    taken.sort()
    return taken[len(taken) // 2], taken[len(taken) * 99 // 100]


def time_cpp(program: Path, folder: Path, seconds: float) -> Times:
    arguments = [str(program), str(folder), str(seconds), *map(str, BATCHES)]
    lines = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.splitlines()
    values = [json.loads(line) for line in lines]
    return {value["rows"]: (value["p50_us"], value["p99_us"]) for value in values}


def print_table(results: list[tuple[str, Times]]) -> None:
    rows = [
        [name, str(batch), f"{p50:,.0f}", f"{p99:,.0f}", f"{1e6 * batch / p50:,.0f}"]
        for name, times in results
        for batch, (p50, p99) in times.items()
    ]
    print(text_table(["", "rows", "p50, µs", "p99, µs", "rows/s"], rows))


if __name__ == "__main__":
    main()
