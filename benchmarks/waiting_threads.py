"""What GOMP_SPINCOUNT does to training speed, alone and beside other busy programs.

    python benchmarks/waiting_threads.py

Trains the same small model with torch's threads spinning 10,000 turns before they sleep (what dlrm-train sets), and not
at all; in turn, three rounds; prints medians and their ratio. Spinning for ever is left out: beside busy programs it
takes minutes.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = 3
POLICIES = ("10000", "0")
BIN = Path(sys.executable).parent
TRAIN = [
    "tables=dataset",
    "tables.embedding_dim=16",
    "trainer.global_batch_size=512",
    "trainer.max_steps=100",
]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(folder, "dlrm-generate", "rows=60_000", "output=clicks.tsv")
        run(folder, "dlrm-preprocess", "dataset=criteo_kaggle", "input.train=clicks.tsv", "output=data")
        print("| cores shared with | 10,000 turns, samples/s | none, samples/s | ratio |")
        print("|---|---|---|---|")
        for num_busy in (0, os.cpu_count() or 1):
            speeds: dict[str, list[float]] = {policy: [] for policy in POLICIES}
            busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_busy)]
            try:
                for number in range(ROUNDS):
                    for policy in POLICIES:
                        speeds[policy].append(train(folder, f"run-{num_busy}-{policy}-{number}", policy))
            finally:
                for process in busy:
                    process.kill()
            some, none = (statistics.median(speeds[policy]) for policy in POLICIES)
            label = f"{num_busy} busy programs" if num_busy else "nobody"
            print(f"| {label} | {some:,.0f} | {none:,.0f} | {some / none:.1f} |", flush=True)


def train(folder: Path, output: str, policy: str) -> float:
    run(folder, "dlrm-train", "data.path=data", *TRAIN, f"output={output}", GOMP_SPINCOUNT=policy)
    return json.loads((folder / output / "result.json").read_text())["samples_per_second"]


def run(folder: Path, command: str, *arguments: str, **environment: str) -> None:
    subprocess.run(
        [str(BIN / command), *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    main()
