"""dlrm-train with a list pooled by attention, or by weights of its elements, beside the same list pooled by its mean or
its sum, each run a command, in turn.

    python benchmarks/histories.py                 # 26 tables, one of which also has a list of 20, three rounds
    python benchmarks/histories.py --poolings sum weights

The model of train.py's ``small``: 26 tables of 10,000 rows and width 32; the list reads the first one. samples/s: from
the end of step WARM_STEPS to the end of the last.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from train import WARM_STEPS, Work, our_command, step_ends
from train_models import SPEED

from dlrm_app.checksums import checksum
from dlrm_app.dataset.manifest import read_manifest, write_manifest

LENGTH = 20
POOLINGS = {
    "mean": "mean",
    "attention": {"attention": "cat_0"},
    "softmax": {"attention": "cat_0", "softmax": True},
    "sum": "sum",
    "weights": "sum",
}


def write_tables(path: Path, pooling: object) -> None:
    """Writes the specs: a feature for each table, and a list for the first."""
    specs = [
        {"name": f"t_{i}", "rows": rows, "dim": SPEED.dim, "features": [f"cat_{i}"], "pooling_factors": [1]}
        for i, rows in enumerate(SPEED.rows)
    ]
    specs[0] |= {"features": ["cat_0", "last"], "pooling_factors": [1, LENGTH], "pooling": pooling}
    path.write_text(yaml.safe_dump({"specs": specs}))


def weigh(folder: Path) -> None:
    """Gives the elements of the list weights, in the dataset in ``folder``."""
    manifest, random = read_manifest(folder), np.random.default_rng(0)
    manifest.sparse[:] = [replace(c, weights="dwell") if c.name == "last" else c for c in manifest.sparse]
    for split in manifest.splits.values():
        for place, shard in enumerate(split.shards):
            path = folder / shard.path
            table = pq.read_table(path)
            lists = table["last"].combine_chunks()
            drawn = pa.array(random.random(len(lists.flatten())), pa.float32())
            table = table.append_column("dwell", pa.ListArray.from_arrays(lists.offsets, drawn))
            pq.write_table(table, path, row_group_size=max(shard.row_groups))
            split.shards[place] = replace(shard, bytes=path.stat().st_size, checksum=checksum(path))
    write_manifest(folder, manifest)


def measure(name: str, work: Work) -> float:
    """samples/s of one run."""
    work = replace(work, folder=work.folder / "weights") if name == "weights" else work
    write_tables(work.folder / "tables.yaml", POOLINGS[name])
    shutil.rmtree(work.folder / "run", ignore_errors=True)
    command, quiet = our_command(work, ["optimizer=rowwise_adagrad"]), subprocess.DEVNULL
    subprocess.run(command, check=True, stdout=quiet, stderr=quiet)
    ends = step_ends(name, work)
    last = max(ends)
    return work.batch * (last - WARM_STEPS) / (ends[last] - ends[WARM_STEPS])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--poolings", nargs="+", choices=[*POOLINGS], default=["mean", "attention", "softmax"]
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        work = Work(SPEED, options.batch, options.steps, 1, folder, None)
        write_tables(folder / "tables.yaml", "mean")
        words = [f"tables={folder}/tables.yaml", "format=dataset", "num_dense=13"]
        words += [f"rows={options.batch * options.steps}", f"output={folder}/dataset"]
        command = [sys.executable, "-m", "dlrm_app.cli", "generate", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        if "weights" in options.poolings:
            shutil.copytree(folder / "dataset", folder / "weights" / "dataset")
            weigh(folder / "weights" / "dataset")
        found: dict[str, list[float]] = {name: [] for name in options.poolings}
        for _ in range(options.rounds):
            for name in options.poolings:
                found[name].append(measure(name, work))
    first = options.poolings[0]
    for name, speeds in found.items():
        shares = [speed / of_first for speed, of_first in zip(speeds, found[first], strict=True)]
        print(
            f"{name:9}  {statistics.median(speeds):9,.0f} samples/s  "
            f"{statistics.median(shares):.2f} of {first}'s"
        )


if __name__ == "__main__":
    main()
