"""Lookups of tables on CPU, and the backward pass with the optimizer's update
in it: fbgemm's operators beside the compiled.

    python benchmarks/table_updates.py --threads 1

26 tables of 10,000 × 32 and batches of 2,048, ids uniform; medians of STEPS. fbgemm's goes first: once its operators
are replaced, they are so for the whole process. --ids: of a bag; --fp16: the tables' weights.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as dlrm-train; before torch is there

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from dlrm_app.kernels.install import keep_freed_memory, replace_operators

TABLES, ROWS, DIM, BATCH = 26, 10_000, 32, 2048
STEPS, NUM_BATCHES = 30, 4
LOOKUP = "lookup"
KINDS = {
    "sgd": EmbOptimType.EXACT_SGD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ids", type=int, default=1)
    parser.add_argument("--fp16", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as dlrm-train
    torch.manual_seed(0)
    ids = [torch.randint(ROWS, (TABLES * BATCH * options.ids,)) for _ in range(NUM_BATCHES)]
    precision = SparseType.FP16 if options.fp16 else SparseType.FP32
    before = {kind: median_ms(kind, ids, precision) for kind in (LOOKUP, *KINDS)}
    replace_operators()
    print("| | fbgemm, ms | compiled, ms |\n|---|---:|---:|")
    for kind, fbgemm in before.items():
        print(f"| {kind} | {fbgemm:.2f} | {median_ms(kind, ids, precision):.2f} |")


def median_ms(kind: str, batches: list[torch.Tensor], precision: SparseType) -> float:
    """Of the backward pass alone, or the lookup."""
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(ROWS, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU)] * TABLES,
        optimizer=KINDS.get(kind, EmbOptimType.EXACT_SGD),
        weights_precision=precision,
        learning_rate=0.01,
        eps=1e-8,
    )
    offsets = torch.arange(TABLES * BATCH + 1) * (len(batches[0]) // (TABLES * BATCH))
    times = []
    gradient = torch.randn(BATCH, TABLES * DIM) / BATCH
    for step in range(STEPS):
        started = time.perf_counter()
        pooled = tables(batches[step % NUM_BATCHES], offsets)
        looked_up = time.perf_counter()
        pooled.backward(gradient)
        times.append(looked_up - started if kind == LOOKUP else time.perf_counter() - looked_up)
    return 1000 * statistics.median(times)


if __name__ == "__main__":
    main()
