"""dlrm-train with a list pooled by attention beside the same list pooled by its mean, each run a command, in turn.

    python benchmarks/histories.py                 # 26 tables, one of which also has a list of 20, three rounds

The model of train.py's ``small``: 26 tables of 10,000 rows and width 32; the list reads the first one. samples/s: from
the end of step WARM_STEPS to the end of the last.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from train import WARM_STEPS, Work, our_command, step_ends
from train_models import SPEED

LENGTH = 20
POOLINGS = {
    "mean": "mean",
    "attention": {"attention": "cat_0"},
    "softmax": {"attention": "cat_0", "softmax": True},
}


def write_tables(path: Path, pooling: object) -> None:
    """Writes the specs: a feature for each table, and a list for the first."""
    specs = [
        {"name": f"t_{i}", "rows": rows, "dim": SPEED.dim, "features": [f"cat_{i}"], "pooling_factors": [1]}
        for i, rows in enumerate(SPEED.rows)
    ]
    specs[0] |= {"features": ["cat_0", "last"], "pooling_factors": [1, LENGTH], "pooling": pooling}
    path.write_text(yaml.safe_dump({"specs": specs}))


def measure(name: str, work: Work) -> float:
    """samples/s of one run."""
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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        work = Work(SPEED, options.batch, options.steps, 1, folder, None)
        write_tables(folder / "tables.yaml", "mean")
        words = [f"tables={folder}/tables.yaml", "format=dataset", "num_dense=13"]
        words += [f"rows={options.batch * options.steps}", f"output={folder}/dataset"]
        command = [sys.executable, "-m", "dlrm_app.cli", "generate", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found: dict[str, list[float]] = {name: [] for name in POOLINGS}
        for _ in range(options.rounds):
            for name in POOLINGS:
                found[name].append(measure(name, work))
    for name, speeds in found.items():
        shares = [speed / mean for speed, mean in zip(speeds, found["mean"], strict=True)]
        print(
            f"{name:9}  {statistics.median(speeds):9,.0f} samples/s  {statistics.median(shares):.2f} of mean's"
        )


if __name__ == "__main__":
    main()
