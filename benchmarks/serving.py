"""dlrm-serve under load by wrk (apt-get install wrk): every answer compared, one request in a hundred malformed, and
another export put in the place of the one served five times meanwhile, one of them damaged, which must be refused.

    python benchmarks/serving.py FIRST_EXPORT SECOND_EXPORT RAW_LOG [--seconds 90] [--connections 16] [--threads 1]

RAW_LOG: text lines as those that the model was trained on, a few thousand. Both exports read the same columns.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dlrm_app.inference.raw_text import raw_spec
from dlrm_app.inference.serve.served_export import ServedExport, open_served
from dlrm_app.preprocess.read.spec import Spec

Row = dict[str, object]
NUM_CASES, MALFORMED = 4000, 0.01
MAX_ROWS = 4
SCRIPT = Path(__file__).with_suffix(".lua")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("raw_log", type=Path)
    parser.add_argument("--seconds", type=int, default=90)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_cases(folder / "cases.tsv", given.first, given.second, given.raw_log)
        shutil.copytree(given.second, folder / "damaged")
        damage(folder / "damaged")
        link = folder / "current"
        link.symlink_to(given.first.resolve())
        with served(link, given.threads) as (process, url):
            run(given, folder, process, url, link)


def run(
    given: argparse.Namespace, folder: Path, process: "subprocess.Popen[str]", url: str, link: Path
) -> None:
    command = ["wrk", f"-t{given.connections}", f"-c{given.connections}", f"-d{given.seconds}s"]
    command += ["--timeout", "10s", "-s", str(SCRIPT), url]
    environment = {**os.environ, "SERVING_CASES": str(folder / "cases.tsv")}
    first, second = given.first.resolve(), given.second.resolve()
    swaps = [second, first, folder / "damaged", second, first]
    memory = []
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as wrk:
        started = time.monotonic()
        for part, target in enumerate([*swaps, None], start=1):
            while time.monotonic() - started < part * given.seconds / (len(swaps) + 1) and wrk.poll() is None:
                time.sleep(0.5)
            memory.append(memory_mib(process.pid))
            if target is not None:
                point_at(link, target)
        output, _ = wrk.communicate()
    result = json.loads(output.splitlines()[-1])
    page = urllib.request.urlopen(f"{url}/metrics").read().decode()
    swapped = dict(re.findall(r'dlrm_swaps_total\{outcome="(\w+)"\} ([\d.]+)', page))
    answered = sum(float(n) for n in re.findall(r'dlrm_requests_total\{status="\d+"\} ([\d.]+)', page))
    result["requests_per_second"] = round(result["requests"] / result["seconds"])
    result["answered_by_server"] = int(answered)  # up to one a connection is on its way when wrk ends
    result["swaps"] = {name: int(float(count)) for name, count in swapped.items()}
    result["server_and_scorer_mib"] = memory
    print(json.dumps(result))
    process.terminate()
    code = process.wait(30)
    bad = result["wrong"] or result["lost"] or code or result["swaps"] != {"taken": 4, "refused": 1}
    if bad or not result["second"] or not result["first"]:
        sys.exit("failed")


def write_cases(path: Path, first: Path, second: Path, raw_log: Path) -> None:
    """Requests with the probabilities that both exports give them, each scored by itself; none for malformed ones."""
    exports = [open_served(each, MAX_ROWS) for each in (first, second)]
    rows = read_rows(raw_log, exports[0])
    chance = random.Random(0)
    with path.open("w") as file:
        for _ in range(NUM_CASES):
            asked = chance.sample(rows, chance.randint(1, MAX_ROWS))
            if chance.random() < MALFORMED:
                file.write(f"\t\t{malformed(asked, exports[0], chance)}\n")
                continue
            answers = [export.score([asked])[0] for export in exports]
            texts = [",".join(map(repr, answer)) for answer in answers if isinstance(answer, list)]
            assert len(texts) == 2, answers
            file.write("\t".join([*texts, json.dumps({"rows": asked})]) + "\n")


def read_rows(raw_log: Path, served: ServedExport) -> list[Row]:
    """The first lines of ``raw_log``."""
    spec = raw_spec(served.export.encoding)
    with raw_log.open(encoding="utf-8") as file:
        if spec.header:
            next(file)
        return [to_row(line.rstrip("\n"), spec) for line, _ in zip(file, range(5000), strict=False)]


def to_row(line: str, spec: Spec) -> Row:
    row: Row = {}
    for text, column in zip(line.split(spec.delimiter), spec.columns, strict=True):
        if column.role not in ("dense", "sparse") or (not text and len(row) % 2):
            continue
        if column.separator is not None:
            row[column.name] = text.split(column.separator) if text else []
        elif not text:
            row[column.name] = None
        else:
            row[column.name] = json.loads(text) if column.kind in ("integer", "float") else text
    return row


def malformed(rows: list[Row], served: ServedExport, chance: random.Random) -> str:
    body = json.dumps({"rows": rows})
    column = next(column.name for column in served.spec.columns if column.role == "dense")
    return chance.choice(
        [
            body[:-3],
            body.replace("rows", "row", 1),
            json.dumps({"rows": []}),
            json.dumps({"rows": [*rows, {column: "many"}]}),
            json.dumps({"rows": [{"no_such_column": 1}, *rows]}),
            json.dumps({"rows": [*rows, {column: {}}]}),
            json.dumps({"rows": [*rows, 7]}),
            json.dumps({"rows": [{}] * 5000}),
            json.dumps({"rows": [{column: float("nan")}]}),
        ]
    )


def damage(export: Path) -> None:
    file = max((path for path in export.iterdir() if path.name.startswith("model.")), key=str)
    with file.open("r+b") as binary:
        binary.seek(file.stat().st_size // 2)
        binary.write(b"damage")


@contextmanager
def served(link: Path, threads: int) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    command = [sys.executable, "-m", "dlrm_app.cli.serve", f"model={link}", "port=0", f"threads={threads}"]
    command.append("limits.body_kib=16384")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = re.search(r"http://[\d.:]+", process.stdout.readline())
        try:
            assert address, "the server did not start"
            yield process, address[0]
        finally:
            process.kill()


def point_at(link: Path, folder: Path) -> None:
    new = link.with_name("next")
    new.symlink_to(folder)
    new.rename(link)


def memory_mib(server: int) -> list[int]:
    """Resident memory of the server and of what it started."""
    pids = [server]
    for task in Path(f"/proc/{server}/task").iterdir():
        pids += map(int, (task / "children").read_text().split())
    found = (re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text()) for pid in pids)
    return [int(match[1]) >> 10 for match in found if match]


if __name__ == "__main__":
    main()
