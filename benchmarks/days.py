"""dlrm-days on generated days beside a nightly training from scratch, and beside the same with expiry.

    taskset -c 0 python benchmarks/days.py                     # 14 days of 200,000 rows; an hour
    taskset -c 0 python benchmarks/days.py --days 4 --rows 20_000 --cardinality 1_000

Each night from scratch is what one would do without dlrm-days: all days so far preprocessed and trained on for one
pass, its model judged on the day that follows. CPU seconds, user and system, are those of the commands in this
process, by step: without starts, and without compiling once that was done. Each day all three go on by one day, as
other programs can make one day's seconds twice another's. Means are over the same days.
"""

import argparse
import json
import shutil
import statistics
import time
from collections import Counter
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from dlrm_app.api.commands import run as run_command
from dlrm_app.api.days import run_in_log
from dlrm_app.config.compose import compose_config
from dlrm_app.config.days import DaysConfig, regrouped
from dlrm_app.config.overrides import Settings
from dlrm_app.config.train import TrainConfig
from dlrm_app.config.words import WordReader
from dlrm_app.tools.daily.days import go_through_days

FIRST = date(2026, 1, 1)
PLAIN = ["experiment=null", "tables.embedding_dim=16", "trainer.global_batch_size=1024"]
STEPS = {"preprocess": "encode", "train": "train", "evaluate": "judge"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=14)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--cardinality", type=int, help="max_cardinality of dlrm-generate")
    parser.add_argument("--expire", type=int, default=3, help="expire_days of the second chain")
    parser.add_argument("--folder", type=Path, default=Path("out/days"), help="a new one, but for its log")
    parser.add_argument("--train", nargs="*", default=PLAIN, help="settings of dlrm-train")
    asked = parser.parse_args()
    folder = asked.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    log, days = folder / "log", [FIRST + timedelta(k) for k in range(asked.days)]
    if not log.exists():
        size = {"days": asked.days, "rows": asked.rows, "max_cardinality": asked.cardinality}
        generated = {**size, "first_day": str(FIRST), "output": str(log)}
        run_in_log(run_command, "generate", generated, folder / "log.txt")
    from_scratch(folder / "scratch", log, days[:1], days[1], asked.train)  # so that all is compiled
    on_spent, few_spent, nightly, aucs = Counter[str](), Counter[str](), Counter[str](), []
    expiry = f"encoding.expire_days={asked.expire}"
    for k in range(1, asked.days + 1):
        on, spent = go_on(folder / "on", log, days[:k], asked.train)
        few, few_spent_today = go_on(folder / "expire", log, days[:k], asked.train, expiry)
        if k == asked.days:  # on which the last model is judged, and that alone counts
            spent, few_spent_today = (Counter({"judge": each["judge"]}) for each in (spent, few_spent_today))
        else:
            auc, night = from_scratch(folder / "scratch", log, days[:k], days[k], asked.train)
            aucs.append(auc)
            nightly += night
        on_spent += spent
        few_spent += few_spent_today
    table = {
        "goes on": (means(on, "next_day"), on_spent),
        "goes on, with expiry": (means(few, "next_day"), few_spent),
        "from scratch each night": (statistics.mean(aucs), nightly),
    }
    for name, (auc, spent) in table.items():
        seconds = ", ".join(f"{step} {spent[step]:.1f}" for step in STEPS.values())
        made = (spent.total() - spent["judge"]) / (nightly.total() - nightly["judge"])
        print(f"{name:24} mean AUC on the next day {auc:.5f}; CPU s: {seconds}; of from scratch's: ", end="")
        print(f"encode and train {made:.3f}, judge too {spent.total() / nightly.total():.3f}")
    print(f"the first day's          mean AUC on the next day {means(on, 'first_model'):.5f}")
    rows = [chain[-1]["vocabulary"]["rows"] for chain in (few, on)]
    print(
        f"rows of all tables on the last day: {rows[0]:,} with expiry, {rows[1]:,} without: {rows[0] / rows[1]:.3f}"
    )


def run(spent: Counter[str], command: str, settings: Settings, log: Path) -> None:
    """Runs dlrm-``command`` in this process; adds its CPU seconds to those ``spent`` on its step."""
    started = time.process_time()
    run_in_log(run_command, command, settings, log)
    spent[STEPS[command]] += time.process_time() - started


def go_on(
    folder: Path, log: Path, days: list[date], train: list[str], *vocabulary: str
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """The lines of days.jsonl of a chain over ``days``, and the CPU seconds of those that it had not gone through."""
    words = [f"input.days={log}/dt={{day}}/*", "dataset=criteo_kaggle", f"output={folder}"]
    words += [f"preprocess.{word}" for word in ("encoding.min_count=2", *vocabulary)]
    words += [f"train.{word}" for word in train]
    words += [f"days.from={days[0]}", f"days.to={days[-1]}", "days.keep=4"]
    spent = Counter[str]()
    config = compose_config(
        "days", DaysConfig, regrouped(WordReader(DaysConfig, "days").read(words).settings)
    )
    go_through_days(config, partial(run, spent))
    lines = [json.loads(line) for line in (folder / "days.jsonl").read_text().splitlines()]
    return lines, spent


def from_scratch(
    folder: Path, log: Path, days: list[date], following: date, train: list[str]
) -> tuple[float, Counter[str]]:
    """AUC on ``following`` of a model of ``days``, and the CPU seconds that it took."""
    dataset, model, result = folder / "dataset", folder / "model", folder / "result.json"
    data = {
        "input.train": [f"{log}/dt={day}/clicks.tsv" for day in days],
        "input.test": f"{log}/dt={following}/clicks.tsv",
        "dataset": "criteo_kaggle",
        "encoding": "vocab",
        "encoding.min_count": 2,
        "dense.target_columns": None,
        "split.val": 0.01,
        "output": str(dataset),
    }
    learnt = {
        "trainer.epochs": 1,
        **WordReader(TrainConfig, "train").read(train).settings,
        "evaluation.test": False,
    }
    learnt |= {"data.path": str(dataset), "output": str(model)}
    judged = {"checkpoint": str(model), "data.path": str(dataset), "split": "test", "output": str(result)}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    spent, printed = Counter[str](), folder / "log.txt"
    run(spent, "preprocess", data, printed)
    run(spent, "train", learnt, printed)
    run(spent, "evaluate", judged, printed)
    return json.loads(result.read_text())["models"][0]["auc_interval"]["value"], spent


def means(lines: list[dict[str, Any]], field: str) -> float:
    return statistics.mean([line[field]["auc"] for line in lines if line[field]])


if __name__ == "__main__":
    main()
