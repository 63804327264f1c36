"""Sections of a run's page: its dataset and environment, and where a step's time goes."""

import shlex
from html import escape
from pathlib import Path
from statistics import fmean

from dlrm_app.reports.page import details, facts
from dlrm_app.reports.run_record import RunRecord
from dlrm_app.runs.events import PARTS, TITLES
from dlrm_app.table import Cell, Column, Columns, html_table, integer, share
from dlrm_app.text import bytes_text, fixed


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
            share(None if split["positives"] is None else split["positives"] / max(1, split["rows"])),
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
    """Changes of the configuration by starts after the first; empty without any."""
    lines = [f"from step {step:,} on: {'; '.join(changes)}" for step, changes in record.changes]
    return f"<p>The configuration was changed {escape(', '.join(lines))}.</p>" if lines else ""


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
    """The command as it was typed, without its program's folder and torchrun's meeting address."""
    environment = record.environment
    program, *arguments = environment.get("command") or ["dlrm-train"]
    name = "python -m dlrm_app.cli train" if program.endswith(".py") else Path(program).name
    if environment.get("world_size", 1) > 1:
        ranks = environment.get("ranks_per_machine") or environment["world_size"]
        machines = environment["world_size"] // ranks
        name = f"torchrun {f'--nnodes {machines} ' * (machines > 1)}--nproc-per-node {ranks} -m dlrm_app.cli train"
    return " ".join([name, *map(shlex.quote, arguments)])


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
