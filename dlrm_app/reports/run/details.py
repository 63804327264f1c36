"""What the run was made of: dataset, sharding plan, configuration, environment, and what to type next."""

import shlex
from html import escape
from pathlib import Path
from typing import Any

from dlrm_app.reports.page import details, facts
from dlrm_app.reports.run.run_record import RunRecord
from dlrm_app.table import Column, Columns, html_table, integer, share
from dlrm_app.text import bytes_text, setting


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
