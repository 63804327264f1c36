"""How far apart the losses of the same training are on one rank and on several, step by step.

    python benchmarks/ranks.py DATASET [--ranks 2] [--steps 600] [KEY=VALUE ...]

Trains on one rank, on several, and on several again, with the loss of every step logged; further arguments are
dlrm-train's. Prints the largest relative difference of losses in each range of steps, and the AUC on val of each run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

RANGES = (1, 10, 20, 50, 100, 150, 200, 300, 600, 1200, 2400)


def train(arguments: argparse.Namespace, ranks: int, output: Path) -> tuple[list[float], float]:
    """(the loss of each step, the last AUC on val)"""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    keys = [
        f"data.path={arguments.dataset}",
        "tables=dataset",
        f"output={output}",
        "trainer.log_every_steps=1",
    ]
    keys += [f"trainer.max_steps={arguments.steps}", "trainer.epochs=1000", "trainer.threads=1"]
    keys += ["report.enabled=false", *arguments.settings]
    command = [sys.executable, *(launcher if ranks > 1 else []), "-m", "dlrm_app.cli.train", *keys]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        sys.exit(f"training on {ranks} rank(s) failed:\n{done.stderr[-2000:]}")
    events = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    losses = [event["loss"] for event in events if event["event"] == "train"]
    aucs = [event["auc"] for event in events if event["event"] == "eval" and event["split"] == "val"]
    return losses, aucs[-1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    arguments = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as scratch:
        one, auc_of_one = train(arguments, 1, Path(scratch, "one"))
        several, auc_of_several = train(arguments, arguments.ranks, Path(scratch, "several"))
        again, auc_again = train(arguments, arguments.ranks, Path(scratch, "again"))
    print(f"steps        1 and {arguments.ranks} ranks   {arguments.ranks} ranks twice")
    for first, last in pairwise(RANGES):
        if first > len(one):
            break
        columns = [
            max(abs(x - y) / x for x, y in list(zip(a, b, strict=True))[first - 1 : last - 1])
            for a, b in ((one, several), (several, again))
        ]
        print(f"{first:4} to {min(last - 1, len(one)):4} {columns[0]:14.1e} {columns[1]:15.1e}")
    print(f"AUC on val: {auc_of_one:.6f}, {auc_of_several:.6f}, {auc_again:.6f}")


if __name__ == "__main__":
    main()
