"""dlrm-days on generated days beside a nightly training from scratch, and beside the same with expiry.

    python benchmarks/days.py                     # 14 days of 200,000 rows; an hour on two cores
    python benchmarks/days.py --days 4 --rows 20_000 --cardinality 1_000

Each night from scratch is what one would do without dlrm-days: all days so far preprocessed and trained on for one pass,
scored on the day that follows. CPU seconds are those of the commands, user and system; means are over the same days.
"""

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path
from typing import Any

FIRST = date(2026, 1, 1)
BIN = Path(sys.executable).parent
PLAIN = ["experiment=null", "tables.embedding_dim=16", "trainer.global_batch_size=1024"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=14)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--cardinality", default="null", help="max_cardinality of dlrm-generate")
    parser.add_argument("--expire", type=int, default=3, help="expire_days of the second chain")
    parser.add_argument("--folder", type=Path, default=Path("out/days"))
    parser.add_argument("--train", nargs="*", default=PLAIN, help="settings of dlrm-train")
    asked = parser.parse_args()
    folder = asked.folder.absolute()
    log, days = folder / "log", [FIRST + timedelta(k) for k in range(asked.days)]
    if not log.exists():
        size = [f"days={asked.days}", f"rows={asked.rows}", f"max_cardinality={asked.cardinality}"]
        run("generate", *size, f"first_day={FIRST}", f"output={log}")
    on, on_seconds = go_on(folder / "on", log, days, asked.train)
    few, few_seconds = go_on(
        folder / "expire", log, days, asked.train, f"encoding.expire_days={asked.expire}"
    )
    scratch = [
        from_scratch(folder / "scratch", log, days[:k], days[k], asked.train) for k in range(1, asked.days)
    ]
    table = {
        "goes on": (means(on, "next_day"), on_seconds),
        "goes on, with expiry": (means(few, "next_day"), few_seconds),
        "from scratch each night": (mean([row[0] for row in scratch]), sum(row[1] for row in scratch)),
        "the first day's": (means(on, "first_model"), 0.0),
    }
    for name, (auc, seconds) in table.items():
        print(f"{name:24} mean AUC on the next day {auc:.5f}, {seconds:8.1f} CPU s")
    print(f"seconds: {on_seconds / table['from scratch each night'][1]:.3f} of from scratch")
    rows = [chain[-1]["vocabulary"]["rows"] for chain in (few, on)]
    print(
        f"rows of all tables on the last day: {rows[0]:,} with expiry, {rows[1]:,} without: {rows[0] / rows[1]:.3f}"
    )
    (folder / "scratch.json").write_text(json.dumps(scratch))


def run(command: str, *words: str) -> float:
    """Runs dlrm-``command``; its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([BIN / f"dlrm-{command}", *words], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def go_on(
    folder: Path, log: Path, days: list[date], train: list[str], *vocabulary: str
) -> tuple[list[dict[str, Any]], float]:
    """The lines of days.jsonl of a chain, and its CPU seconds up to the model that is judged last."""
    words = [f"input.days='{log}/dt={{day}}/*'", "dataset=criteo_kaggle", f"output={folder}"]
    words += [f"preprocess.{word}" for word in ("encoding.min_count=2", *vocabulary)]
    words += [f"train.{word}" for word in train] + [f"days.from={days[0]}", "days.keep=4"]
    seconds = run("days", *words, f"days.to={days[-2]}")
    run("days", *words, f"days.to={days[-1]}")  # which judges the model of the day before
    lines = [json.loads(line) for line in (folder / "days.jsonl").read_text().splitlines()]
    return lines, seconds


def from_scratch(
    folder: Path, log: Path, days: list[date], following: date, train: list[str]
) -> tuple[float, float]:
    """AUC on ``following`` of a model of ``days``, and the CPU seconds of its preprocessing and training."""
    dataset, model, result = folder / "dataset", folder / "model", folder / "result.json"
    files = ",".join(f"'{log}/dt={day}/clicks.tsv'" for day in days)
    data = [
        f"input.train=[{files}]",
        f"input.test='{log}/dt={following}/clicks.tsv'",
        "dataset=criteo_kaggle",
    ]
    data += ["encoding=vocab", "encoding.min_count=2", "dense.target_columns=null", "split.val=0.01"]
    shutil.rmtree(folder, ignore_errors=True)
    seconds = run("preprocess", *data, f"output={dataset}")
    words = ["trainer.epochs=1", *train, "evaluation.test=false", f"data.path={dataset}", f"output={model}"]
    seconds += run("train", *words)
    run("evaluate", f"checkpoint={model}", f"data.path={dataset}", "split=test", f"output={result}")
    return json.loads(result.read_text())["models"][0]["auc_interval"]["value"], seconds


def means(lines: list[dict[str, Any]], field: str) -> float:
    return mean([line[field]["auc"] for line in lines if line[field]])


def mean(values: list[float]) -> float:
    return statistics.mean(values)


if __name__ == "__main__":
    main()
