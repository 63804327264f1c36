"""dlrm-preprocess beside its peers, each a process of its own, in turn, several rounds; prints a Markdown table.

    pip install 'dlrm-app[bench]'
    python benchmarks/preprocess.py                        # 8,000,000 rows, about 1.9 GB of text
    python benchmarks/preprocess.py --rows 12_000_000 --max-cardinality 10_131_227 --engines ours polars
    python benchmarks/preprocess.py --rows 12_000_000 --engines ours ours-parquet polars polars-parquet
    python benchmarks/preprocess.py --rows 12_000_000 --engines ours ours-auto  # what auto costs

Every engine gets a Criteo-shaped file, or the same rows as Parquet, which polars has written, and does
the same job: numbers to float32 by log1p, hexadecimal ids to numbers, hashed to 100,000 ids by its own
64-bit hash, missing values to 0, everything to Parquet with zstd. Each checks the input as far as it can:
types, and hexadecimal digits; only this project also finds and names each malformed line. The input is
read once before each run, so that none waits for the disk.
"""

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

NUM_EMBEDDINGS = 100_000
DENSE = [f"int_{number}" for number in range(13)]
SPARSE = [f"cat_{number}" for number in range(26)]
OURS = ("ours", "ours-auto", "ours-parquet")


@dataclass(frozen=True)
class Measured:
    """One run of a whole process; seconds and bytes."""

    wall: float
    cpu: float
    peak: int


# the engines


def command(engine: str, clicks: Path, output: Path) -> list[str]:
    """The arguments for Python that preprocess ``clicks``, or the Parquet
    file beside it, into the folder ``output``.
    """
    path = parquet_of(clicks) if engine.endswith("-parquet") else clicks
    if engine not in OURS:
        return [__file__, "--work-as", engine, str(path), str(output)]
    dense = ["dense.transform=log1p", "dense.bucket_columns=null", "dense.target_columns=null"]
    chosen = [] if engine == "ours-auto" else [f"encoding.num_embeddings={NUM_EMBEDDINGS}", *dense]
    given = ["dataset=criteo_kaggle", f"input.train={path}", f"output={output}", *chosen]
    return ["-m", "dlrm_app.cli", "preprocess", *given]


def parquet_of(path: Path) -> Path:
    """The Parquet file beside a Criteo file, with the same rows: integers, and strings of hex digits."""
    parquet = path.with_suffix(".parquet")
    if not parquet.exists():
        _frame(path).sink_parquet(parquet)
    return parquet


def _frame(path: Path) -> Any:
    """polars' lazy frame of a Criteo file."""
    import polars as pl

    schema = {"label": pl.UInt8, **dict.fromkeys(DENSE, pl.Int64), **dict.fromkeys(SPARSE, pl.String)}
    return pl.scan_csv(path, separator="\t", has_header=False, schema=schema, quote_char=None)


def polars(path: Path, output: Path, is_parquet: bool = False) -> None:
    import polars as pl

    dense = [
        pl.col(name).fill_null(0).clip(lower_bound=0).cast(pl.Float64).log1p().cast(pl.Float32)
        for name in DENSE
    ]
    numbers = [pl.col(name).str.to_integer(base=16, dtype=pl.UInt32) for name in SPARSE]
    sparse = [
        pl.when(number.is_null()).then(0).otherwise(number.hash() % (NUM_EMBEDDINGS - 1) + 1).cast(pl.Int32)
        for number in numbers
    ]
    sparse = [column.alias(name) for column, name in zip(sparse, SPARSE, strict=True)]
    frame = pl.scan_parquet(path) if is_parquet else _frame(path)
    frame.select("label", *dense, *sparse).sink_parquet(
        output / "train.parquet", compression="zstd", compression_level=1
    )


def duckdb(path: Path, output: Path) -> None:
    import duckdb as db

    types = {"label": "UTINYINT", **dict.fromkeys(DENSE, "BIGINT"), **dict.fromkeys(SPARSE, "VARCHAR")}
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in types.items())
    dense = [f"CAST(ln(greatest(coalesce({name}, 0), 0) + 1.0) AS FLOAT) AS {name}" for name in DENSE]
    sparse = [
        f"CAST(CASE WHEN {name} IS NULL THEN 0 ELSE 1 + hash(CAST('0x' || {name} AS UINTEGER)) "
        f"% {NUM_EMBEDDINGS - 1} END AS INTEGER) AS {name}"
        for name in SPARSE
    ]
    db.sql(
        f"COPY (SELECT label, {', '.join(dense + sparse)} FROM read_csv('{path}', delim='\t', header=false, "
        f"quote='', escape='', auto_detect=false, columns={{{columns}}})) TO '{output}/train.parquet' "
        "(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"
    )


PEERS: dict[str, Callable[[Path, Path], None]] = {
    "polars": polars,
    "polars-parquet": partial(polars, is_parquet=True),
    "duckdb": duckdb,
}


# measuring


def measure(engine: str, clicks: Path, output: Path) -> Measured:
    """Runs ``engine`` in a new process; ends the program if it fails."""
    shutil.rmtree(output, ignore_errors=True)
    if engine not in OURS:
        output.mkdir()
    words = [sys.executable, *command(engine, clicks, output)]
    settle(clicks)
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        if status:
            log.seek(0)
            sys.exit(f"{engine} failed:\n{log.read()[-3000:]}")
    return Measured(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def settle(clicks: Path) -> None:
    """The input into the page cache, the last engine's output out to the disk:
    no engine waits for what is not its own.
    """
    os.sync()
    for each in clicks.parent.glob(f"{clicks.stem}.*"):
        with each.open("rb", buffering=0) as file:
            while file.read(1 << 24):
                pass


def write_clicks(path: Path, rows: int, max_cardinality: int) -> Path:
    """A Criteo-shaped file, with many different ids, as the real one has; kept if it is there already."""
    if not path.exists():  # by another process: a child's peak counts its parent's memory
        keys = [f"output={path}", f"rows={rows}", f"max_cardinality={max_cardinality}"]
        subprocess.run([sys.executable, "-m", "dlrm_app.cli", "generate", *keys], check=True)
    return path


def check_same_job(clicks: Path, output: Path, engines: Sequence[str]) -> None:
    """Stops unless the engines give the same labels and numbers, and ids that are 0 and equal in the same rows."""
    import numpy as np
    import pyarrow.parquet as pq

    tables = {}
    for name in {"ours", *engines} - {"ours-auto"}:  # which has other columns for few rows
        measure(name, clicks, output)
        tables[name] = pq.read_table(min(output.rglob("*.parquet")))
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
            distinct = len(np.unique(theirs)), len(np.unique(expected))
            assert abs(distinct[0] - distinct[1]) <= 0.05 * len(expected), f"{name}: {column}"


def table_of(measured: dict[str, list[Measured]], rows: int) -> str:
    """Medians of all rounds, and by round how much faster this project is."""
    lines = [
        "| | rows/s | CPU s per million rows | peak MiB | this project is, by round |",
        "|---|---:|---:|---:|---|",
    ]
    for name, runs in measured.items():
        wall, cpu, peak = (
            statistics.median(getattr(run, key) for run in runs) for key in ("wall", "cpu", "peak")
        )
        ours = measured.get("ours", []) if name != "ours" else []
        ratios = ", ".join(f"{theirs.wall / our.wall:.2f}×" for theirs, our in zip(runs, ours, strict=False))
        cells = [name, f"{rows / wall:,.0f}", f"{cpu / rows * 1e6:.2f}"]
        lines.append(f"| {' | '.join([*cells, f'{peak / 2**20:,.0f}', ratios])} |")
    return "\n".join(lines)


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(": ")[1] for line in lines if line.startswith("model name")), "")
    packages = ", ".join(f"{name} {version(name)}" for name in ("polars", "duckdb", "pyarrow", "numba"))
    return f"{model}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, {packages}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", nargs="+", choices=[*OURS, *PEERS], default=["ours", "polars", "duckdb"])
    parser.add_argument("--max-cardinality", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="keeps the files for the next time")
    parser.add_argument("--work-as", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work_as:
        engine, path, output = options.work_as
        PEERS[engine](Path(path), Path(output))
        return
    names = options.engines
    with tempfile.TemporaryDirectory(prefix="preprocess-benchmark-") as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        check_same_job(write_clicks(folder / "few.tsv", 2000, 1_000_000), folder / "output", names)
        name = f"clicks-{options.rows}-{options.max_cardinality}.tsv"
        clicks = write_clicks(folder / name, options.rows, options.max_cardinality)
        measured: dict[str, list[Measured]] = {name: [] for name in names}
        for number in range(options.rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                run = measure(name, clicks, folder / "output")
                measured[name].append(run)
                print(
                    f"round {number + 1}: {name} {options.rows / run.wall:,.0f} rows/s",
                    file=sys.stderr,
                    flush=True,
                )
        size = clicks.stat().st_size / 1e6
        print(f"{options.rows:,} rows, {size:,.0f} MB; {machine()}; median of {options.rounds} rounds.\n")
        print(table_of(measured, options.rows))


if __name__ == "__main__":
    main()
