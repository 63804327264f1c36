"""Sections of a run's page: its dataset, plan and environment, its tables' health, a step's time, MLPerf's convergence."""

import math
import shlex
from collections.abc import Mapping
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from dlrm_app.reports.page import details, facts
from dlrm_app.reports.run_record import RunRecord
from dlrm_app.runs.events import PARTS, TITLES
from dlrm_app.table import Cell, Column, Columns, Rows, html_table, integer, share
from dlrm_app.text import NONE, bytes_text, fixed, setting


def dataset_section(record: RunRecord) -> str:
    """Rows, positives and rejects of every split; empty where the run has no dataset.json."""
    dataset = record.dataset
    if not dataset:
        return ""
    rows = [
        [
            name,
            integer(split["rows"]),
            integer(split["positives"]),
            share(
                split["positives"] / split["rows"]
                if split["positives"] is not None and split["rows"]
                else None
            ),
            integer(split["rejects"]),
            bytes_text(split["bytes"]),
        ]
        for name, split in dataset["splits"].items()
    ]
    sentence = (
        f"{dataset['dataset']} in {dataset['path']}: {dataset['num_dense']} dense and "
        f"{len(dataset['sparse'])} sparse features; fingerprint {dataset['fingerprint'][:12]}."
    )
    headings = ["split", "rows", "positives", "positive rate", "rejected lines", "on disk"]
    return f"<h2>Dataset</h2><p>{escape(sentence)}</p>{html_table(headings, rows)}"


def changes_section(record: RunRecord) -> str:
    """What starts after the first changed of the configuration; empty where nothing was."""
    lines = [f"from step {step:,} on: {'; '.join(changes)}" for step, changes in record.changes]
    return f"<p>The configuration was changed {escape(', '.join(lines))}.</p>" if lines else ""


def plan_section(record: RunRecord) -> str:
    """The ranks that hold each table."""
    tables: dict[str, Any] = record.plan.get("tables") or {}
    rows = [
        [
            name,
            entry["sharding_type"].replace("_", " "),
            entry["compute_kernel"],
            ", ".join(map(str, entry["ranks"])),
            f"{len(entry['shards']):,}" if entry["shards"] else "a copy each",
        ]
        for name, entry in tables.items()
    ]
    columns: Columns = [
        "table",
        *(Column(title, is_words=True) for title in ("sharding", "kernel", "ranks", "shards")),
    ]
    return details("Sharding plan", html_table(columns, rows)) if tables else ""


def environment_section(record: RunRecord) -> str:
    """environment.json."""
    environment = record.environment
    if not environment:
        return ""
    machine = environment.get("machine", {})
    values = {
        "command": command_line(record),
        "typed in": environment.get("folder", ""),
        "started": environment.get("started", ""),
        "device": environment.get("device", ""),
        "ranks": f"{environment.get('world_size', '')}, {environment.get('threads_per_rank', '')} thread(s) each",
        "machine": f"{machine.get('system', '')}, {machine.get('cores', '')} cores",
        "Python": environment.get("python", ""),
        **environment.get("packages", {}),
    }
    shown = {name: str(value) for name, value in values.items() if value}
    return details("Environment", facts(shown))


def command_line(record: RunRecord) -> str:
    """The command as it was typed, but for its program's folder and torchrun's address of a meeting place."""
    environment = record.environment
    program, *arguments = environment.get("command") or ["dlrm-train"]
    name = "python -m dlrm_app.cli.train" if program.endswith(".py") else Path(program).name
    if environment.get("world_size", 1) > 1:
        ranks = environment.get("ranks_per_machine") or environment["world_size"]
        machines = environment["world_size"] // ranks
        name = f"torchrun {f'--nnodes {machines} ' * (machines > 1)}--nproc-per-node {ranks} -m dlrm_app.cli.train"
    return " ".join([name, *map(shlex.quote, arguments)])


def next_section(record: RunRecord) -> str:
    """What to type next."""
    run = shlex.quote(str(record.path))
    commands = [f"less {run}/metrics.jsonl"]
    if (record.path / "tensorboard").is_dir():
        commands.append(f"tensorboard --logdir {run}/tensorboard")
    if record.result is None:
        words = [word for word in shlex.split(command_line(record)) if not word.startswith("resume=")]
        if not any(word.startswith("output=") for word in words):
            words += shlex.split(setting("output", record.path))
        commands.insert(0, shlex.join([*words, "resume=auto"]))
        commands.append(f"dlrm-report {run}")
    return f"<h2>Next</h2><pre>{escape(chr(10).join(commands))}</pre>"


COLUMNS = (
    "table",
    Column("rows", "rows of the table"),
    Column("trained", "share of the rows whose weights have changed since the start"),
    Column("norm", "Frobenius norm of the weights"),
    Column("growth", "norm over its first value; the bar is relative to the table that grew most"),
    Column("missing", "share of the rows evaluated whose value is missing"),
    Column("rare", "share of the lookups for values without an id of their own: rare or new ones"),
    Column("collisions", "share of the distinct raw values that share their id with another"),
    Column("top 1", "share of the lookups that go to the hottest row"),
    Column("top 10", "share of the lookups that go to the ten hottest rows"),
)


def health_section(record: RunRecord) -> str:
    """The latest health event as a table; empty without one."""
    if not record.health:
        return ""
    event = record.health[-1]
    growths = [values["norm_growth"] or 0.0 for values in event.tables.values()]
    most = max([growth for growth in growths if math.isfinite(growth)], default=0.0) or 1.0
    rows: Rows = [[name, *_cells(values, most)] for name, values in event.tables.items()]
    sentence = f"Weights after step {event.step:,}; lookups by the rows of {escape(event.split)}."
    return f"<h2>Tables</h2><p>{sentence}</p>{html_table(COLUMNS, rows)}"


def _cells(values: dict[str, float | None], most_growth: float) -> list[Cell]:
    growth = values["norm_growth"]
    return [
        integer(values["rows"]),
        share(values["rows_touched"]),
        Cell(fixed(values["weight_norm"], 2), values["weight_norm"]),
        Cell(NONE) if growth is None else Cell(f"×{fixed(growth, 2)}", growth, growth / most_growth),
        *(
            share(values[key])
            for key in ("missing_rate", "rare_rate", "collision_rate", "top1_share", "top10_share")
        ),
    ]


def step_section(record: RunRecord) -> str:
    """A line for each part, with its share as a bar; empty where none was measured."""
    events = [event.step_ms for event in record.train if event.step_ms]
    events = events[1:] or events  # the first has the start's slow steps
    means = {part: fmean(step_ms.get(part, 0.0) for step_ms in events) for part in PARTS if events}
    total = sum(means.values())
    if not total:
        return ""
    rows: list[list[str | Cell]] = [
        [TITLES[part], Cell(fixed(ms, 2), ms), share(ms / total), PARTS[part]]
        for part, ms in means.items()
        if ms
    ]
    rows.append(["all", Cell(fixed(total, 2), total), "", ""])
    columns: Columns = ["part", "ms a step", "share", Column("what it is", is_words=True)]
    return f"<h2>Where a step's time goes</h2>{html_table(columns, rows)}"


PUBLISHED = {0.05: 0.7898, 0.10: 0.7942, 0.20: 0.7976, 0.50: 0.8014, 0.70: 0.80275}
"""Share of the epoch → AUC on val: MLPerf Training, 8×B200, batch 55,296."""
EPOCHS_TO_TARGET = {
    32_768: 0.707,
    55_296: 0.762,
    65_536: 0.791,
    102_400: 0.891,
    135_168: 0.928,
    160_000: 0.958,
}
"""Batch size → mean epochs to AUC 0.80275: the reference convergence points of MLPerf Training 6.0."""


def convergence_section(record: RunRecord) -> str:
    """AUC by the share of the epoch, the published one beside it; nothing for runs without MLPerf's log."""
    if not record.config.get("logging", {}).get("mllog"):
        return ""
    trainer = record.config["trainer"]
    rows_of_train = record.dataset["splits"]["train"]["rows"]
    epochs = {
        each.step * trainer["global_batch_size"] / rows_of_train: each.metrics["auc"]
        for each in record.evals
        if each.split == "val"
    }
    rows: Rows = [
        [f"{share:.0%}", _auc(_at(share, epochs)), _auc(published)] for share, published in PUBLISHED.items()
    ]
    batch_size = trainer["global_batch_size"]
    nearest_batch = min(EPOCHS_TO_TARGET, key=lambda size: abs(size - batch_size))
    note = (
        f"MLPerf's reference takes {EPOCHS_TO_TARGET[nearest_batch]} epochs to 0.80275 at batch {nearest_batch:,} "
        f"(this run: {batch_size:,}). The published column is of 8×B200 at batch 55,296, on Criteo 1TB."
    )
    return f"<h2>Convergence</h2>{html_table(['of the epoch', 'AUC on val', 'published'], rows)}<p>{note}</p>"


def _at(share: float, epochs: Mapping[float, float]) -> float | None:
    """The AUC after that share of the first epoch, give or take a hundredth of it."""
    nearest = min(epochs, key=lambda epoch: abs(epoch - share), default=share + 1)
    return epochs[nearest] if abs(nearest - share) < 0.01 else None


def _auc(value: float | None) -> Cell:
    return Cell(fixed(value, 5), value)
