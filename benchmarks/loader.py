"""How fast a dataset's training split becomes batches, without a model.

    dlrm-generate rows=2_000_000 output=clicks.tsv
    dlrm-preprocess dataset=criteo_kaggle input.train=clicks.tsv output=clicks
    python benchmarks/loader.py clicks --cores 1

Prints samples/s of each stage (wall clock and per CPU second of all threads), then of the whole loader, and what
a batch costs once its row groups are decoded. Other work on the machine slows the first and leaves the second.
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from dlrm_app.data.batch import BatchMaker, TrainBatches
from dlrm_app.data.batch_order import Order, train_order
from dlrm_app.data.manifest import Manifest, read_manifest
from dlrm_app.data.reader import SplitReader
from dlrm_app.data.rows import join
from dlrm_app.display.table import text_table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3, help="the fastest counts")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    pa.set_cpu_count(options.cores)
    manifest = read_manifest(options.dataset)
    features = [column.name for column in manifest.sparse]
    reader = SplitReader(manifest, "train", features)
    order = train_order(
        reader.group_rows, global_batch_size=options.batch_size, lanes=options.lanes, seed=0, epoch=0
    )
    print(
        f"{sum(reader.group_rows):,} rows in {len(reader.group_rows)} row groups, {options.cores} core(s)\n"
    )
    stages = {
        "decode": lambda: decode_all(reader),
        "decode and shuffle rows": lambda: decode_all(reader, order),
        "whole loader": lambda: load_all(manifest, features, options),
    }
    rows = [[name, *rates(stage, options.epochs)] for name, stage in stages.items()]
    print(text_table(["stage", "samples/s", "per CPU second"], rows))
    print()
    maker = BatchMaker(manifest, features, options.batch_size)
    print(text_table([f"a batch of {options.batch_size:,}", "ms"], batch_costs(reader, order, maker)))


def rates(stage: Callable[[], int], epochs: int) -> list[str]:
    """[samples/s, samples per CPU second], each the best of ``epochs`` runs."""
    wall, cpu = [], []
    for _ in range(epochs):
        start, cpu_start = time.perf_counter(), time.process_time()
        samples = stage()
        wall.append(samples / (time.perf_counter() - start))
        cpu.append(samples / (time.process_time() - cpu_start))
    return [f"{max(wall):,.0f}", f"{max(cpu):,.0f}"]


def decode_all(reader: SplitReader, order: Order | None = None) -> int:
    for group, size in enumerate(reader.group_rows):
        reader.decode(group, order.row_order(group, size) if order else None)
    return sum(reader.group_rows)


def load_all(manifest: Manifest, features: list[str], options: argparse.Namespace) -> int:
    with TrainBatches(
        manifest, features, global_batch_size=options.batch_size, lanes=options.lanes
    ) as batches:
        return sum(batch.num_valid for batch in batches)


def batch_costs(reader: SplitReader, order: Order, maker: BatchMaker) -> list[list[str]]:
    """Milliseconds of finding, copying and wrapping a batch's rows, means over the first batches of an epoch."""
    steps = range(min(order.num_steps, 100))
    pieces = {step: order.pieces(step) for step in steps}
    groups = {piece.group for step in steps for piece in pieces[step]}
    decoded = {group: reader.decode(group) for group in groups}
    ranges = [[(decoded[piece.group], piece.start, piece.stop) for piece in pieces[step]] for step in steps]
    rows = join(ranges[0])
    stages = {
        "find its pieces": lambda step: order.pieces(step),
        "copy them together": lambda step: join(ranges[step]),
        "make tensors": lambda step: maker.make(rows),
    }
    return [[name, f"{1000 * mean_seconds(stage, steps):.3f}"] for name, stage in stages.items()]


def mean_seconds(stage: Callable[[int], object], steps: range) -> float:
    start = time.process_time()
    for step in steps:
        stage(step)
    return (time.process_time() - start) / len(steps)


if __name__ == "__main__":
    main()
