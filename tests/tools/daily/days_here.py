"""A log of a few days, and what ``dlrm-days`` does with it, in this process and on one thread."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dlrm_app.api import days as in_log
from dlrm_app.api.commands import run
from dlrm_app.config import compose
from dlrm_app.config.days import DaysConfig, regrouped
from dlrm_app.config.generate import GenerateConfig
from dlrm_app.config.overrides import Settings
from dlrm_app.tools.daily.days import Outcome, go_through_days
from dlrm_app.tools.synthetic import generate
from tests.composed import compose_config, read_words
from tests.small_run import SMALL

FIRST = "2026-11-01"
NAMES = [f"2026-11-0{number}" for number in range(1, 6)]


def write_log(folder: Path, *words: str, rows: int = 3000, days: int = 4) -> None:
    """FOLDER/dt=2026-11-01/clicks.tsv and so on, whose few values are learnt quickly."""
    keys = [
        f"days={days}",
        f"rows={rows}",
        f"first_day={FIRST}",
        "max_cardinality=60",
        "new_ids=0.1",
        "signal.auc=0.9",
        *words,
    ]
    generate(compose_config("generate", GenerateConfig, [*keys, "threads=1", f"output={folder}"]))


def days_words(log: Path, output: Path, last: str) -> list[str]:
    """The words behind ``dlrm-days``."""
    small = [f"train.{word}" for word in (*SMALL, "trainer.threads=1", "report.enabled=false")]
    return [
        f"input.days={log}/dt={{day}}/*",
        "dataset=criteo_kaggle",
        f"output={output}",
        f"days.from={FIRST}",
        f"days.to={last}",
        "preprocess.threads=1",
        "preprocess.encoding.expire_days=2",
        "preprocess.layout.row_group_rows=512",
        "train.optimizer.sparse.lr=0.1",
        *small,
    ]


def configured(words: Sequence[str]) -> DaysConfig:
    settings = regrouped(read_words(DaysConfig, "days", words))
    return compose.compose_config("days", DaysConfig, settings)


def run_in_log(name: str, settings: Settings, log: Path) -> None:
    """Runs a command as dlrm-days does."""
    in_log.run_in_log(run, name, settings, log)


def learn(words: Sequence[str], runner: Any = run_in_log) -> Outcome:
    """What ``dlrm-days *words`` does."""
    return go_through_days(configured(words), runner)


def lines(output: Path) -> dict[str, dict[str, Any]]:
    """Day → its line in days.jsonl."""
    values = map(json.loads, (output / "days.jsonl").read_text().splitlines())
    return {value["day"]: value for value in values}


KEPT = ("day.json", "*.parquet", "manifest.json", "*.tensors", "days.jsonl", "model.pt*")


def results(output: Path) -> dict[str, bytes]:
    """Days, datasets, weights and exports, byte for byte; an export.json has the times of its verification."""
    paths = {path for pattern in KEPT for path in output.rglob(pattern) if "published" not in path.parts}
    return {str(path.relative_to(output)): path.read_bytes() for path in sorted(paths)}
