"""dlrm-preprocess on logs of unusual shapes: many small files, hundreds of columns, objects of a store.

    python benchmarks/shapes.py           # 1,000 files of 1,000 rows, text and Parquet, in turn, three rounds
    python benchmarks/shapes.py --wide    # 700 numbers and 700 ids, 20,000 rows; also 15 steps of dlrm-train
    python benchmarks/shapes.py --store   # 8,000,000 rows, and the small files, of a store that takes 50 ms an answer

Whole commands, wall seconds. Rows are those of dlrm-generate in Criteo's columns, in Hive folders of days and hours.
"""

import argparse
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from preprocess import Measured, parquet_of

FILES, PER_FILE = 1_000, 1_000
WIDE, WIDE_ROWS = 700, 20_000
STORE_ROWS, STORE_FILES = 8_000_000, 2
DELAY, PORT = 0.05, 8124
SETTINGS = [
    "encoding=hash",
    "encoding.num_embeddings=100000",
    "dense.transform=log1p",
    "dense.target_columns=null",
]
NAMES = ["label", *(f"int_{i}" for i in range(13)), *(f"cat_{i}" for i in range(26))]


def seconds(command: str, words: Sequence[str]) -> float:
    return measure(command, words).wall


def measure(command: str, words: Sequence[str]) -> Measured:
    """Runs a command in a new process; ends the program if it fails."""
    start = time.perf_counter()
    run = [sys.executable, "-m", "dlrm_app.cli", command, *words]
    process = subprocess.Popen(run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"this failed: {shlex.join(run)}")
    return Measured(time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def as_table(text: bytes) -> pa.Table:
    """Criteo's lines as a table of whole numbers and texts."""
    types = {name: pa.string() if name.startswith("cat") else pa.int64() for name in NAMES}
    return pacsv.read_csv(
        pa.BufferReader(text),
        read_options=pacsv.ReadOptions(column_names=NAMES),
        parse_options=pacsv.ParseOptions(delimiter="\t"),
        convert_options=pacsv.ConvertOptions(column_types=types, strings_can_be_null=True),
    )


def write_files(folder: Path) -> None:
    """A thousand small files and one large file of the same rows, as text and as Parquet."""
    seconds("generate", [f"rows={FILES * PER_FILE}", f"output={folder}/all.tsv"])
    lines = (folder / "all.tsv").read_bytes().splitlines(keepends=True)
    pq.write_table(as_table(b"".join(lines)), folder / "all.parquet", compression="zstd")
    for number in range(FILES):
        text = b"".join(lines[number * PER_FILE : (number + 1) * PER_FILE])
        place = f"dt=2026-{1 + number // 24 // 28:02d}-{1 + number // 24 % 28:02d}/hour={number % 24:02d}"
        for form in ("tsv", "parquet"):
            path = folder / f"many_{form}" / place / f"part-0.{form}"
            path.parent.mkdir(parents=True)
            if form == "tsv":
                path.write_bytes(text)
            else:
                pq.write_table(as_table(text), path, compression="zstd")


def measure_files(folder: Path, rounds: int) -> None:
    write_files(folder)
    print(f"{FILES:,} files of {PER_FILE:,} rows beside one file of the same rows, {rounds} rounds in turn")
    for form in ("tsv", "parquet"):
        found: dict[str, list[float]] = {"one": [], "many": []}
        for number in range(rounds + 1):  # the first one compiles
            for name, given in (("one", f"{folder}/all.{form}"), ("many", f"{folder}/many_{form}")):
                output = folder / f"out-{form}-{name}-{number}"
                took = seconds(
                    "preprocess",
                    ["dataset=criteo_kaggle", f"input.train={given}", *SETTINGS, f"output={output}"],
                )
                found[name] += [took] * (number > 0)
                shards = len([*output.glob("train/*.parquet")])
        one, many = (statistics.median(times) for times in found.values())
        rate = FILES * PER_FILE / many
        print(
            f"{form:8} one {one:.1f} s, many {many:.1f} s, {rate:,.0f} rows/s, {one / many:.2f} of it, {shards} shards"
        )


def measure_wide(folder: Path) -> None:
    draw = np.random.default_rng(0)
    columns = {"label": draw.integers(0, 2, WIDE_ROWS)}
    columns |= {f"d{i}": draw.lognormal(size=WIDE_ROWS).round(3) for i in range(WIDE)}
    ids = (draw.integers(0, 10 + 3 * i, WIDE_ROWS).astype(str) for i in range(WIDE))
    columns |= {f"s{i}": np.char.add("v", values) for i, values in enumerate(ids)}
    table = pa.table(columns)
    pq.write_table(table, folder / "wide.parquet")
    pacsv.write_csv(table, folder / "wide.csv")
    roles = ["  - {name: label, role: label}"]
    roles += [f"  - {{name: d{i}, role: dense, kind: float}}" for i in range(WIDE)]
    roles += [f"  - {{name: s{i}, role: sparse, kind: string}}" for i in range(WIDE)]
    head = ["name: wide", "delimiter: ','", "quote: '\"'", "header: true", "columns:"]
    (folder / "wide.yaml").write_text("\n".join([*head, *roles, ""]))
    print(f"{WIDE} numbers and {WIDE} ids, {WIDE_ROWS:,} rows, nothing chosen")
    for form in ("csv", "parquet"):
        output = folder / f"wide_{form}"
        words = [
            f"dataset={folder}/wide.yaml",
            f"input.train={folder}/wide.{form}",
            "split.val=0.1",
            f"output={output}",
        ]
        print(f"dlrm-preprocess from {form}: {seconds('preprocess', words):.0f} s")
    words = [f"data.path={output}", "tables=dataset", "trainer.max_steps=15", f"output={folder}/run"]
    print(f"dlrm-train, 15 steps and val: {seconds('train', words):.0f} s")


def preprocess(given: str, folder: Path) -> Measured:
    shutil.rmtree(folder / "out", ignore_errors=True)
    words = [f"input.train={given}", *SETTINGS, f"output={folder}/out"]
    return measure("preprocess", ["dataset=criteo_kaggle", *words])


def measure_store(folder: Path, rounds: int) -> None:
    """The same input from a store and from the disk, in turn; of small objects also beside one object of their rows."""
    logs = folder / "logs"
    logs.mkdir()
    write_files(logs)
    for part in range(STORE_FILES):
        text = logs / f"large_tsv/part-{part}.tsv"
        words = [f"rows={STORE_ROWS // STORE_FILES}", f"seed={part + 1}", f"output={text}"]
        seconds("generate", words)
        made = logs / f"large_parquet/part-{part}.parquet"
        made.parent.mkdir(exist_ok=True)
        parquet_of(text).rename(made)
        text.with_name(f"{text.name}.best.json").unlink()
    store = [
        sys.executable,
        str(Path(__file__).with_name("slow_store.py")),
        str(folder),
        str(PORT),
        str(DELAY),
    ]
    os.environ |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{PORT}", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    running = subprocess.Popen(store)
    print("input, rows | disk, store: wall s, CPU s | the store's rows/s of the disk's, by round")
    try:
        for form in ("tsv", "parquet"):
            preprocess(f"{logs}/all.{form}", folder)  # compiles
            for name, rows in (
                (f"large_{form}", STORE_ROWS),
                (f"all.{form}", 10**6),
                (f"many_{form}", 10**6),
            ):
                found = [
                    tuple(preprocess(f"{place}/{name}", folder) for place in (logs, "s3://logs"))
                    for _ in range(rounds)
                ]
                cells = [
                    f"{statistics.median(each.wall for each in runs):.1f} s, "
                    f"{statistics.median(each.cpu for each in runs):.1f} s"
                    for runs in zip(*found, strict=True)
                ]
                ratios = ", ".join(f"{disk.wall / far.wall:.2f}" for disk, far in found)
                print(f"{name}, {rows:,} | {' | '.join(cells)} | {ratios}", flush=True)
    finally:
        running.terminate()
        running.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wide", action="store_true", help="hundreds of columns in place of small files")
    parser.add_argument("--store", action="store_true", help="objects of a slow store")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the files are made, for a while")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        if options.wide:
            measure_wide(Path(name))
        elif options.store:
            measure_store(Path(name), options.rounds)
        else:
            measure_files(Path(name), options.rounds)


if __name__ == "__main__":
    main()
