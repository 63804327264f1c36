"""dlrm-predict beside the dense floor: what the products of the model's linear layers alone would take.

    python benchmarks/predict.py EXPORT CHECKPOINT DATASET [--split train] [--threads 2] [--batch-size 2048]

The floor is measured before and after, and the faster one counts. The time of dlrm-predict is that of the whole command: loading and
verifying the model, reading the dataset, writing the scores.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from dlrm_app.config.compose import compose_config
from dlrm_app.config.predict import PredictConfig
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.inference.predict.predict import predict
from dlrm_app.inference.scoring_model import CheckpointWeights
from dlrm_app.runs.checkpoint.load_trained import open_trained

SECONDS = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("export", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--split", default="train")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=2048)
    given = parser.parse_args()
    with start_runtime(given.threads) as runtime:
        model = CheckpointWeights(open_trained(given.checkpoint, runtime)).model
        linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
        floors = [floor(linears, given.batch_size)]
    rows = read_manifest(given.dataset).splits[given.split].rows
    with tempfile.TemporaryDirectory() as folder:
        keys = [f"model={given.export}", f"data.path={given.dataset}", f"split={given.split}"]
        keys += [f"threads={given.threads}", f"batch_size={given.batch_size}", f"output={folder}/s.parquet"]
        started = time.perf_counter()
        predict(compose_config("predict", PredictConfig, keys))
        seconds = time.perf_counter() - started
    with start_runtime(given.threads):
        floors.append(floor(linears, given.batch_size))
    print(
        f"dense floor {floors[0]:,.0f} and {floors[1]:,.0f} rows/s; dlrm-predict {rows / seconds:,.0f} rows/s"
    )
    print(f"{rows / seconds / max(floors):.2f} of the floor")


@torch.no_grad()
def floor(linears: list[nn.Linear], rows: int) -> float:
    """Rows a second of the products alone, in fp32."""
    inputs = [torch.rand(rows, linear.in_features) for linear in linears]
    times = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < SECONDS:
        started = time.perf_counter()
        for linear, values in zip(linears, inputs, strict=True):
            linear(values)
        times.append(time.perf_counter() - started)
    return rows / sorted(times)[len(times) // 2]


if __name__ == "__main__":
    main()
