"""Peak memory and seconds of every command on tables of several GiB, against the bytes of the tables.

    python benchmarks/memory.py             # 26 tables of a million rows x 32 (3.1 GiB), then twice as many rows:
    half an hour python benchmarks/memory.py --gib 3 --only save,load
    python benchmarks/memory.py --frozen 1_000_000   # a frozen table of so many vectors of 384 numbers in fp16

Memory is anonymous memory (RssAnon and RssShmem) of all processes of a command, every 20 ms; files that Linux may
drop do not count. Prints a table; a row is marked if it takes more than 1.1 times the tables and 1 GiB a rank.
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GIB = 1 << 30
ROWS, DIM, NUM_TABLES = 1_000_000, 32, 26
PORT = 18_473
WIDTH = 384
FROZEN = """name: frozen
delimiter: ","
header: true
columns:
  - {name: clicked, role: label}
  - {name: user, role: sparse, kind: string}
  - {name: item, role: sparse, kind: string}
derived:
  - {name: item_text, kind: vectors, of: item, file: items.parquet}
"""


@dataclass
class Measured:
    """Peaks in bytes, of the whole command and while it saved, and seconds."""

    peak: int = 0
    peak_of_save: int = 0
    seconds: float = 0.0
    lines: list[str] = field(default_factory=list)


def memory_of(root: int) -> int:
    """Anonymous memory of the process ``root`` and of all that descend from it."""
    parents, memory = {}, {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                number = int(process.name)
                status = (process / "status").read_text()
            except OSError:  # it has ended
                continue
            found = re.search(r"PPid:\s+(\d+)", status)
            parents[number] = int(found[1]) if found else 0
            memory[number] = sum(int(kib) << 10 for kib in re.findall(r"Rss(?:Anon|Shmem):\s+(\d+)", status))
    family = {root}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    return sum(memory.get(number, 0) for number in family)


def measure(line: str, is_done: Callable[[], bool] = lambda: False) -> Measured:
    """Runs one of this environment's commands; ends it once ``is_done``."""
    words = line.split()
    path = Path(sys.executable).with_name(words[0])
    saves = next(
        (Path(word[7:], "checkpoints") for word in words if word.startswith("output=")), Path("none")
    )
    measured, started = Measured(), time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen([path, *words[1:]], stdout=said, stderr=subprocess.STDOUT)
        ended = False
        while process.poll() is None:
            memory = memory_of(process.pid)
            measured.peak = max(measured.peak, memory)
            if next(saves.glob(".step-*.partial"), None) is not None:
                measured.peak_of_save = max(measured.peak_of_save, memory)
            if not ended and is_done():
                ended = True
                process.send_signal(signal.SIGTERM)
            time.sleep(0.02)
        measured.seconds = time.monotonic() - started
        said.seek(0)
        measured.lines = said.read().splitlines()
    if process.returncode and not ended:
        measured.peak, text = 0, "\n".join(measured.lines[-20:])
        print(f"failed: {line}\n{text}", file=sys.stderr)
    return measured


def is_serving() -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{PORT}/ready", timeout=1) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def never() -> bool:
    return False


def commands(keys: str) -> Iterator[tuple[str, str, Callable[[], bool]]]:
    """(Name, line, when to end it) of each command, in the order in which they need each other's results."""
    train = f"dlrm-train data.path=ds {keys} trainer.max_steps=10"
    ranks = "torchrun --standalone --nproc-per-node 2 -m dlrm_app.cli"

    yield "train, save", f"{train} output=run", never
    yield "train, asynchronous save", f"{train} checkpoint.asynchronous=true output=run_async", never
    yield "resume", f"dlrm-train data.path=ds {keys} trainer.max_steps=15 resume=auto output=run", never
    yield (
        "resume on two ranks, row_wise",
        f"{ranks} train data.path=ds {keys} sharding.types=[row_wise] trainer.max_steps=20 resume=auto output=run",
        never,
    )
    yield "warm start", f"{train} warm_start.checkpoint=run output=warm", never
    yield "evaluate", "dlrm-evaluate checkpoint=run data.path=ds split=val", never
    yield "predict", "dlrm-predict model=run data.path=ds split=val output=scores.parquet", never
    for kind in ("fp32", "int8"):
        for form in ("torchscript", "aoti"):
            line = f"dlrm-export checkpoint=run data.path=ds split=val quantize={kind} format={form}"
            yield f"export {kind}, {form}", f"{line} output=export_{kind}_{form}", never
    yield (
        "export parquet",
        "dlrm-export checkpoint=run data.path=ds format=parquet output=export_parquet",
        never,
    )
    yield "serve int8", f"dlrm-serve model=export_int8_torchscript port={PORT}", is_serving
    yield "serve fp32", f"dlrm-serve model=export_fp32_torchscript port={PORT}", is_serving
    yield (
        "from_dataset",
        "dlrm-preprocess dataset=criteo_kaggle input.train=clicks.tsv encoding=from_dataset encoding.path=ds "
        "output=again",
        never,
    )


def run(rows: int, only: list[str]) -> None:
    """Measures all commands on tables of ``rows`` rows, and prints a line for each."""
    tables = rows * DIM * NUM_TABLES * 4
    keys = f"tables=dataset tables.embedding_dim={DIM} experiment=null optimizer=rowwise_adagrad"
    keys += f" model.bottom_mlp=[64,{DIM}] model.top_mlp=[64,1] trainer.global_batch_size=2048 report.enabled=false"
    measure("dlrm-generate rows=60_000 output=clicks.tsv overwrite=true")
    settings = (
        f"encoding=hash encoding.num_embeddings={rows} dense.bucket_columns=null dense.target_columns=null"
    )
    measure(
        f"dlrm-preprocess dataset=criteo_kaggle input.train=clicks.tsv split.val=0.1 {settings} output=ds"
    )
    allowed = 1.1 * tables
    for name, line, is_done in commands(keys):
        if only and not any(part in name for part in only):
            continue
        measured = measure(line, is_done)
        rows_of_table = [(name, measured.peak)]
        if measured.peak_of_save:
            rows_of_table = [
                (f"{name}: all", measured.peak),
                (f"{name}: while saving", measured.peak_of_save),
            ]
        saved = [re.search(r"saved step-\d+ in ([\d.]+) s", each) for each in measured.lines]
        seconds = f"{measured.seconds:.1f}" + "".join(f", saved in {found[1]}" for found in saved if found)
        for what, peak in rows_of_table:
            more = " more than allowed" if peak > allowed + GIB * (1 + ("two ranks" in what)) else ""
            print(
                f"| {what} | {tables / GIB:.1f} | {peak / GIB:.2f} | {(peak - tables) / GIB:+.2f} | {seconds} |{more}",
                flush=True,
            )


def run_frozen(rows: int) -> None:
    """Measures commands with ``rows`` vectors beside the same with 1,000 of them: the difference is the table's."""
    log = np.random.default_rng(0).integers(0, 1000, (20_000, 2))
    lines = (f"{(user + item) % 2},u{user},{item}" for user, item in log)
    Path("log.csv").write_text("clicked,user,item\n" + "\n".join(lines) + "\n")
    Path("log.yaml").write_text(FROZEN)
    found: dict[str, list[int]] = {}
    for size in (1000, rows):
        vectors = np.random.default_rng(1).standard_normal((size, WIDTH), np.float32).astype(np.float16)
        values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), WIDTH)
        pq.write_table(pa.table({"value": [str(n) for n in range(size)], "vector": values}), "items.parquet")
        del vectors, values
        measure(f"dlrm-preprocess dataset=log.yaml input.train=log.csv split.val=0.1 output=ds{size}")
        train = f"dlrm-train data.path=ds{size} trainer.global_batch_size=1024 report.enabled=false"
        given = f"data.path=ds{size} split=val"
        for name, line, is_done in (
            ("train", f"{train} output=run{size}_ROUND", never),
            ("evaluate", f"dlrm-evaluate checkpoint=run{size}_0 {given}", never),
            (
                "export, TorchScript",
                f"dlrm-export checkpoint=run{size}_0 {given} judgement=ignore format=torchscript output=x{size}_ROUND",
                never,
            ),
            ("serve", f"dlrm-serve model=x{size}_0 port={PORT}", is_serving),
        ):
            # other copies come and go, so that a peak varies by a tenth: the least of three
            peaks = [measure(line.replace("ROUND", str(number)), is_done).peak for number in range(3)]
            found.setdefault(name, []).append(min(peaks))
    table = (rows - 1000) * WIDTH * 2
    for name, (few, many) in found.items():
        more = many - few
        print(f"| {name} | {table / GIB:.3f} | {more / GIB:.3f} | {more / table - 1:+.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, nargs="*", default=[3, 6], help="sizes of the tables")
    parser.add_argument("--only", default="", help="parts of names, with commas between")
    parser.add_argument("--frozen", type=int, help="the rows of a frozen table")
    arguments = parser.parse_args()
    if arguments.frozen:
        print(
            "| command | table, GiB | more than with 1,000 vectors, GiB | beyond the table |\n|---|---|---|---|"
        )
        with tempfile.TemporaryDirectory(prefix="memory-") as folder, contextlib.chdir(folder):
            run_frozen(arguments.frozen)
        return
    print("| command | tables, GiB | peak, GiB | beyond the tables | seconds |\n|---|---|---|---|---|")
    for gib in arguments.gib:
        folder = tempfile.mkdtemp(prefix="memory-")
        try:
            os.chdir(folder)
            run(round(gib / 3 * ROWS), [part for part in arguments.only.split(",") if part])
        finally:
            os.chdir("/")
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
