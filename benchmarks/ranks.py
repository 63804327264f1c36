"""dlrm-preprocess on one rank and on two, which meet in files; prints a Markdown table.

    python benchmarks/ranks.py                    # 4,000,000 rows
    python benchmarks/ranks.py --rows 400_000 --rounds 5    # what meeting costs

Ranks are processes of this machine with torchrun's variables and one thread each, beside one process of two threads. Ways
take turns in each round. Every dataset must have the bytes of the first.
"""

import argparse
import filecmp
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMAND = [sys.executable, "-m", "dlrm_app.cli"]
KINDS = {
    "hash, one pass": ["encoding=hash", "encoding.num_embeddings=100_000", "dense.target_columns=null"],
    "vocabularies and target columns": ["encoding=vocab", "encoding.min_count=5", "dense.target_columns=all"],
}
PLAIN = ["dataset=criteo_kaggle", "dense.transform=log1p", "dense.bucket_columns=null", "memory_gib=4"]
WAYS = {"one rank, one thread": (1, 1), "two ranks, one thread each": (2, 1), "one rank, two threads": (1, 2)}


def measure(
    clicks: Path, output: Path, settings: list[str], num_ranks: int, threads: int
) -> tuple[float, float]:
    """The seconds, and the CPU seconds, that all ranks take together."""
    shutil.rmtree(output, ignore_errors=True)
    os.sync()
    words = [*COMMAND, "preprocess", f"input.train={clicks}", f"output={output}", *PLAIN, *settings]
    begin, before = time.perf_counter(), os.times()
    ranks = [
        subprocess.Popen(
            [*words, f"threads={threads}"],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(num_ranks)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for rank in range(num_ranks)
    ]
    codes = [rank.wait() for rank in ranks]
    if any(codes):
        sys.exit(f"failed: {' '.join(words)}")
    after = os.times()
    busy = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - begin, busy


def are_equal(one: Path, other: Path) -> bool:
    """True if two datasets have the same files with the same bytes."""
    names = [{path.relative_to(folder) for path in folder.rglob("*")} for folder in (one, other)]
    return names[0] == names[1] and all(
        filecmp.cmp(one / name, other / name, shallow=False) for name in names[0] if (one / name).is_file()
    )


def compare(clicks: Path, folder: Path, kind: str, rounds: int) -> None:
    """Prints the lines of ``kind``: the medians of each way, and its ratio to the first by round."""
    measure(clicks, folder / "first", KINDS[kind], 1, 2)  # compiles, and is what the others must equal
    measured: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way, places in WAYS.items():
            measured[way].append(measure(clicks, folder / "output", KINDS[kind], *places))
            wall, busy = measured[way][-1]
            print(
                f"round {number + 1}, {kind}, {way}: {wall:.1f} s, {busy:.1f} CPU s",
                file=sys.stderr,
                flush=True,
            )
            if not are_equal(folder / "first", folder / "output"):
                sys.exit(f"{way} gives other bytes")
    base = measured[next(iter(WAYS))]
    for way, taken in measured.items():
        wall, busy = (statistics.median(each) for each in zip(*taken, strict=True))
        ratios = ", ".join(f"{one[0] / each[0]:.2f}" for one, each in zip(base, taken, strict=True))
        print(f"| {kind} | {way} | {wall:.1f} | {busy:.1f} | {ratios} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ranks-benchmark-") as temporary:
        folder = Path(temporary)
        clicks = folder / "clicks.tsv"
        keys = [f"output={clicks}", f"rows={options.rows}", "max_cardinality=100_000"]
        subprocess.run([*COMMAND, "generate", *keys], check=True, capture_output=True)
        print(
            f"{options.rows:,} rows, {clicks.stat().st_size / 1e6:,.0f} MB; median of {options.rounds} rounds.\n"
        )
        print(
            "| encoding | way | s | CPU s | times as fast as the first, by round |\n|---|---|---:|---:|---|",
            flush=True,
        )
        for kind in KINDS:
            compare(clicks, folder, kind, options.rounds)


if __name__ == "__main__":
    main()
