"""Estimated steps beside measured ones on this machine; every ratio is printed.

    python benchmarks/estimates.py                           # measures the machine and four models, on 1, 2 and 4 ranks
    python benchmarks/estimates.py --ranks 2 --models multi-hot

dlrm-bench output=machine.yaml, dlrm-plan for each model with that file, and dlrm-bench's steps on batches in memory; means.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from train_models import KAGGLE, SPEED, Shapes

MODELS = {
    "small": (SPEED, 2048),
    "kaggle": (KAGGLE, 2048),
    "wide": (Shapes([50_000] * 16, 64, (512, 256, 64), (1024, 512, 256, 1)), 4096),
    "multi-hot": (Shapes([100_000] * 8, 32, (256, 32), (256, 1), ids=[10] * 8), 4096),
}
"""Each with its batch."""
VALUES = 80_000_000
"""Values of all rows of a model."""


def call(name: str, keys: list[str], ranks: int = 1) -> str:
    """What ``dlrm-NAME keys`` prints; ends the program if it fails."""
    start = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    )
    command = [sys.executable, *start, "-m", "dlrm_app.cli", name, *keys]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def estimated_ms(printed: str) -> float:
    """A whole step by dlrm-plan's table."""
    _, found, table = printed.partition("a whole step, estimated")
    if not found:
        sys.exit(f"no estimate in:\n{printed[-1500:]}")
    row = re.search(r"^all {2,}([\d.,]+)(?:  |$)", table, flags=re.MULTILINE)
    return float(str(row and row[1]).replace(",", ""))


def measured(ranks: int, names: list[str], data: Path, folder: Path) -> None:
    topology = folder / "machine.yaml"
    call("bench", [f"output={topology}"], ranks)
    for name in names:
        shapes, batch = MODELS[name]
        keys = [f"tables={data / name}/tables.yaml", *shapes.settings(), f"trainer.global_batch_size={batch}"]
        keys.append(f"topology={topology}")  # of both: other bandwidths make another plan
        planned = estimated_ms(call("plan", [*keys, "smallest=false"]))
        rows = f"data.path={data / name}/dataset"
        call("bench", [*keys, rows, "measure=[model]", "steps=40", f"output={folder / name}"], ranks)
        bench = json.loads((folder / name / "bench.json").read_text())
        taken = bench["sections"][0]["all"]["mean"]
        cells = [f"{1000 * batch / each:,.0f}" for each in (planned, taken)]
        print(f"| {name} | {ranks} | {' | '.join(cells)} | {taken / planned:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--models", default=",".join(MODELS))
    options = parser.parse_args()
    names = options.models.split(",")
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary)
        for name in names:
            shapes, _ = MODELS[name]
            (data / name).mkdir()
            shapes.write_rows(data / name, VALUES // (shapes.num_dense + sum(shapes.ids_per_feature)))
        print(
            "| model | ranks | estimated, samples/s | measured | estimated over measured |\n|---|---:|---:|---:|---:|"
        )
        for ranks in map(int, options.ranks.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                measured(ranks, names, data, Path(folder))


if __name__ == "__main__":
    main()
