"""How fast a dataset's training split becomes batches, without a model.

    dlrm-generate rows=2_000_000 output=clicks.tsv
    dlrm-preprocess dataset=criteo_kaggle input.train=clicks.tsv output=clicks
    python benchmarks/loader.py clicks

Prints samples/s and ids/s of Parquet decoding alone, then of the whole loader, shuffled, KeyedJaggedTensors
included: the best of several epochs, with a worker for each core.
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from dlrm_app.dataset.arrow import Bags
from dlrm_app.dataset.manifest import Manifest, read_manifest
from dlrm_app.kernels.install import keep_freed_memory
from dlrm_app.loader.batch import Loading, TrainBatches
from dlrm_app.loader.batch_order import BatchPlan
from dlrm_app.loader.prefetch import map_in_order
from dlrm_app.loader.reader import SplitReader
from dlrm_app.table import text_table

WORKERS = len(os.sched_getaffinity(0))
BATCH_SIZES = (2048, 16_384)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    keep_freed_memory()  # as dlrm-train
    manifest = read_manifest(options.dataset)
    features = [column.name for column in manifest.sparse]
    reader = SplitReader(manifest, "train", features)
    rows, num_ids = sum(reader.group_rows), count_ids(reader)
    print(
        f"{rows:,} rows of {num_ids / rows:.4g} ids in {len(reader.group_rows)} row groups, {WORKERS} worker(s)\n"
    )
    stages: dict[str, Callable[[], object]] = {"Parquet decoding": lambda: read_all(manifest, features)}
    for size in BATCH_SIZES:
        stages[f"whole loader, batch {size:,}"] = lambda size=size: load_all(manifest, features, size)
    table = [[name, *rates(stage, options.epochs, rows, num_ids)] for name, stage in stages.items()]
    print(text_table(["stage", "samples/s", "ids/s"], table))


def count_ids(reader: SplitReader) -> int:
    """Ids of all features, as the first row group has them."""
    first = reader.decode(0)
    num_ids = sum(len(each.values) if isinstance(each, Bags) else len(each) for each in first.features)
    return round(num_ids / len(first) * sum(reader.group_rows))


def rates(stage: Callable[[], object], epochs: int, rows: int, num_ids: int) -> list[str]:
    """[samples/s, ids/s], the best of ``epochs`` runs."""
    seconds = []
    for _ in range(epochs):
        start = time.perf_counter()
        stage()
        seconds.append(time.perf_counter() - start)
    return [f"{count / min(seconds):,.0f}" for count in (rows, num_ids)]


def read_all(manifest: Manifest, features: list[str]) -> None:
    """Arrow alone, a row group a thread."""
    columns = [*(column.name for column in manifest.dense), *features, manifest.label]
    shards = manifest.splits["train"].shards
    groups = [
        (manifest.folder / shard.path, group) for shard in shards for group in range(len(shard.row_groups))
    ]

    def read(place: tuple[Path, int]) -> None:
        with pq.ParquetFile(place[0], page_checksum_verification=True) as file:
            file.read_row_group(place[1], columns=columns, use_threads=False)

    for _ in map_in_order(read, groups, WORKERS, 2 * WORKERS):
        pass


def load_all(manifest: Manifest, features: list[str], batch_size: int) -> None:
    loading = Loading(num_workers=WORKERS)
    source = SplitReader(manifest, "train", features)
    with TrainBatches(source, BatchPlan(batch_size), loading) as batches:
        for _ in batches:
            pass


if __name__ == "__main__":
    main()
