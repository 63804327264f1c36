"""Preprocessing against its peers, each in a process of its own, in turn, several rounds; prints Markdown tables.

    pip install 'dlrm-app[bench]'
    python benchmarks/preprocess.py                        # 8,000,000 rows, about 1.9 GB of text
    python benchmarks/preprocess.py rows=2_000_000 rounds=5 folder=/scratch/benchmark
    python benchmarks/preprocess.py memory=true            # peak memory of 2 and 20 million rows as well
    python benchmarks/preprocess.py command=true rows=12_000_000 max_cardinality=10_131_227 engines=ours,polars
    python benchmarks/preprocess.py command=true rows=12_000_000 max_cardinality=10_131_227 \\
        engines=ours,ours-parquet,polars,polars-parquet  # the same rows as Parquet, which polars has written
    python benchmarks/preprocess.py command=true rows=12_000_000 engines=ours,ours-auto  # what auto costs

Every engine gets a Criteo-shaped file and does the same job: numbers to float32 by log1p, hexadecimal ids to numbers,
hashed to 100,000 ids by its own 64-bit hash, missing values to 0, everything to Parquet with zstd. Each checks the
input as far as it can: types, and hexadecimal digits; only this project also finds and names each malformed line. The
input is read once before each run, so that none waits for the disk.
The time of the job leaves out what a command takes for any input: imports, this project's configuration being composed
(0.15 to 0.2 s), and a first small file, which loads compiled code; the process's has all of it in. With ``command=true``
there is no first small file, this project's engine is the command dlrm-preprocess, and ratios are of whole processes.
"""

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from preprocess_engines import (
    DENSE,
    ENGINES,
    NUM_EMBEDDINGS,
    SPARSE,
    parquet_of,
    preprocess_overrides,
)

from dlrm_app.config.compose import compose_config
from dlrm_app.config.datasets import GenerateConfig

WARM_ROWS = 2000
MEMORY_ROWS = (2_000_000, 20_000_000)


@dataclass
class Options:
    """Of the command line, as key=value."""

    rows: int = 8_000_000
    rounds: int = 3
    engines: str = "all"
    memory: bool = False
    command: bool = False
    max_cardinality: int = 1_000_000
    folder: str = ""
    """Keeps the files for the next time."""


# measuring


@dataclass(frozen=True)
class Measured:
    """One run; seconds and bytes."""

    rows: int
    job: float
    wall: float
    cpu: float
    peak: int


def measure(engine: str, inputs: Sequence[Path], rows: int, folder: Path, cold: bool = False) -> Measured:
    """Runs ``engine`` in a new process; ``cold``: as a command that has the job and nothing else to do."""
    output = folder / "output"
    shutil.rmtree(output, ignore_errors=True)
    words = [__file__, f"engine={engine}", f"folder={folder}", f"cold={cold}", *map(str, inputs)]
    as_command = cold and engine.startswith("ours")
    if as_command:  # dlrm-preprocess, as it is typed
        files = [parquet_of(path) for path in inputs] if engine == "ours-parquet" else inputs
        words = [
            "-m",
            "dlrm_app.cli",
            "preprocess",
            *preprocess_overrides(files, output, chosen=engine == "ours-auto"),
        ]
    start = time.perf_counter()
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        if status:
            log.seek(0)
            sys.exit(f"{engine} failed:\n{log.read()[-3000:]}")
    shutil.rmtree(output, ignore_errors=True)
    told = (
        {"seconds": wall, "peak": usage.ru_maxrss * 1024} if as_command else json.loads(said.splitlines()[-1])
    )
    return Measured(rows, told["seconds"], wall, usage.ru_utime + usage.ru_stime, told["peak"])


def settle(inputs: Sequence[Path]) -> None:
    """The input into the page cache, the last engine's output out to the disk: no engine waits for what is not its own."""
    os.sync()
    for path in inputs:
        for each in path.parent.glob(f"{path.stem}.*"):
            with each.open("rb", buffering=0) as file:
                while file.read(1 << 24):
                    pass


def work_as_engine(name: str, folder: Path, cold: bool, inputs: Sequence[Path]) -> None:
    """In the process of one engine: a small file first, unless ``cold``; then the job, whose seconds are printed."""
    engine = ENGINES[name]
    warm_up = [] if cold else [("warm-up", [folder / "warm.tsv"])]
    for output, files in (*warm_up, ("output", inputs)):
        shutil.rmtree(folder / output, ignore_errors=True)
        if not name.startswith("ours"):
            (folder / output).mkdir()
        job = engine.prepare(files, folder / output)
        start = time.perf_counter()
        job()
        seconds = time.perf_counter() - start
    shutil.rmtree(folder / "warm-up", ignore_errors=True)
    print(json.dumps({"seconds": seconds, "peak": peak_bytes()}))


def peak_bytes() -> int:
    """The most memory that this process has had; rusage would count its parent's as well, whose copy it began as."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


# the data


def write_clicks(path: Path, rows: int, max_cardinality: int = 1_000_000) -> Path:
    """A Criteo-shaped file, with many different ids, as the real one has; kept if it is there already."""
    from dlrm_app.synthetic import generate

    if not path.exists():
        options = [f"output={path}", f"rows={rows}"]
        options.append(f"max_cardinality={max_cardinality}")
        generate(compose_config("generate", GenerateConfig, options))
    return path


def make_input(folder: Path, options: Options) -> Path:
    """The rows that every engine gets, beside the few that it warms up with."""
    write_clicks(folder / "warm.tsv", WARM_ROWS)
    name = f"clicks-{options.rows}-{options.max_cardinality}.tsv"
    return write_clicks(folder / name, options.rows, max_cardinality=options.max_cardinality)


def check_same_job(folder: Path) -> None:
    """Stops unless the engines give the same labels and numbers, and ids that are 0 and equal in the same rows."""
    import numpy as np
    import pyarrow.parquet as pq

    tables = {}
    for name in ENGINES.keys() - {"ours-auto"}:  # which has other columns for few rows
        output = folder / f"same-{name}"
        shutil.rmtree(output, ignore_errors=True)
        if not name.startswith("ours"):
            output.mkdir()
        ENGINES[name].prepare([folder / "warm.tsv"], output)()
        path = next(path for path in sorted(output.rglob("*.parquet")))
        tables[name] = pq.read_table(path)
        shutil.rmtree(output)
    ours = tables.pop("ours")
    for name, table in tables.items():
        assert table.column_names == ours.column_names, name
        assert table["label"].to_pylist() == ours["label"].to_pylist(), name
        for column in DENSE:
            np.testing.assert_allclose(table[column].to_numpy(), ours[column].to_numpy(), rtol=1e-6)
        for column in SPARSE:
            theirs, expected = table[column].to_numpy(), ours[column].to_numpy()
            assert ((theirs == 0) == (expected == 0)).all(), f"{name}: {column}"
            assert 0 <= theirs.min() <= theirs.max() < NUM_EMBEDDINGS, f"{name}: {column}"
            assert abs(len(np.unique(theirs)) - len(np.unique(expected))) <= 0.05 * len(expected), (
                f"{name}: {column}"
            )


# the tables


def main_table(measured: dict[str, list[Measured]], of_processes: bool = False) -> str:
    """Medians of all rounds; ratios are of the jobs' speeds, or ``of_processes``."""
    speeds = {
        name: statistics.median([m.rows / (m.wall if of_processes else m.job) for m in runs])
        for name, runs in measured.items()
    }
    lines = [
        "| | rows/s, job | rows/s, process | CPU s per million rows | peak MiB | this project is |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, runs in measured.items():
        ratio = f"{speeds['ours'] / speeds[name]:.1f}×" if "ours" in speeds and name != "ours" else ""
        cells = [
            ENGINES[name].title,
            f"{speeds[name]:,.0f}",
            f"{statistics.median(m.rows / m.wall for m in runs):,.0f}",
            f"{statistics.median(m.cpu / m.rows * 1e6 for m in runs):.2f}",
            f"{statistics.median(m.peak for m in runs) / 2**20:,.0f}",
            ratio,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def memory_table(folder: Path, kept: int) -> str:
    """This project's peak memory for few and for many rows; the file of ``kept`` rows stays."""
    lines = ["| rows | peak MiB | rows/s, job |", "|---:|---:|---:|"]
    for rows in MEMORY_ROWS:
        path = write_clicks(folder / f"clicks-{rows}.tsv", rows)
        run = measure("ours", [path], rows, folder)
        lines.append(f"| {rows:,} | {run.peak / 2**20:,.0f} | {run.rows / run.job:,.0f} |")
        if rows != kept:
            path.unlink()
    return "\n".join(lines)


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(": ")[1] for line in lines if line.startswith("model name")), "")
    packages = ", ".join(f"{name} {version(name)}" for name in ("polars", "duckdb", "pyarrow", "numba"))
    return f"{model}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, {packages}"


def parse(arguments: Sequence[str]) -> Options:
    kinds: dict[Any, Callable[[str], Any]] = {int: int, str: str, bool: lambda text: text == "true"}
    known = {field.name: kinds[field.type] for field in fields(Options)}
    values = {}
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key not in known:
            sys.exit(f"{argument}: give key=value with a key of {', '.join(known)}\n\n{__doc__}")
        values[key] = known[key](value)
    return Options(**values)


def main(options: Options) -> None:
    names = list(ENGINES) if options.engines == "all" else options.engines.split(",")
    with tempfile.TemporaryDirectory(prefix="preprocess-benchmark-") as temporary:
        folder = Path(options.folder or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        clicks = make_input(folder, options)
        check_same_job(folder)
        measured: dict[str, list[Measured]] = {name: [] for name in names}
        for number in range(options.rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                settle([clicks])
                run = measure(name, [clicks], options.rows, folder, options.command)
                measured[name].append(run)
                speeds = f"{run.rows / run.job:,.0f} rows/s, {run.rows / run.wall:,.0f} as a process"
                print(f"round {number + 1}: {name} {speeds}", file=sys.stderr)
        size = clicks.stat().st_size
        print(
            f"{options.rows:,} rows, {size / 1e6:,.0f} MB; {machine()}; median of {options.rounds} rounds.\n"
        )
        print(main_table(measured, options.command))
        if options.memory:
            print(f"\n{memory_table(folder, options.rows)}")


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1].startswith("engine="):
        (engine, folder, cold), files = (word.split("=")[1] for word in sys.argv[1:4]), sys.argv[4:]
        work_as_engine(engine, Path(folder), cold == "True", [Path(file) for file in files])
    else:
        main(parse(sys.argv[1:]))
