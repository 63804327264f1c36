"""The page that compares runs, and its main table as text."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from dlrm_app.reports.chart import charts_html
from dlrm_app.reports.comparison.curves import comparison_charts
from dlrm_app.reports.comparison.paired import PairedTest
from dlrm_app.reports.comparison.runs import ComparedRun, differences
from dlrm_app.reports.page import page
from dlrm_app.reports.run.headline import METRICS
from dlrm_app.table import Cell, Column, Columns, Rows, html_table
from dlrm_app.text import NONE, count, duration, fixed, short

Tests = Mapping[str, PairedTest | str]


def results_table(
    runs: Sequence[ComparedRun], split: str, tests: Tests, confidence: float
) -> tuple[Columns, Rows]:
    """A row a run: metrics of its last evaluation on ``split``, its test against the first run, cost and speed."""
    interval = f"{100 * confidence:g}% interval"
    columns = [
        Column("run", is_words=True),
        *(Column(title) for title, _ in METRICS.values()),
        Column("difference", f"AUC less that of {runs[0].name}, by the checkpoints, on the same rows"),
        Column(interval, "of the difference (DeLong, paired)"),
        Column("p", "of no difference, adjusted for the number of runs tested (Holm)"),
        Column("steps"),
        Column("rows trained"),
        Column("samples/s", "of training"),
        Column("time", "of training"),
    ]
    return columns, [_row(run, split, tests) for run in runs]


def _row(run: ComparedRun, split: str, tests: Tests) -> list[str | Cell]:
    event, record = run.final(split), run.record
    values = {key: event.metrics.get(key) if event else None for key in METRICS}
    result = record.result or {}
    speed = result.get("samples_per_second") or (
        record.train[-1].samples_per_second if record.train else None
    )
    seconds = result.get("train_seconds")
    return [
        run.name if record.result else f"{run.name} (not finished)",
        *(Cell(fixed(values[key], decimals), values[key]) for key, (_, decimals) in METRICS.items()),
        *_test_cells(tests.get(run.name)),
        Cell(f"{record.last_step:,}", record.last_step),
        Cell(short(record.last_step * run.batch_size), record.last_step * run.batch_size),
        Cell(short(speed), speed),
        Cell(NONE if seconds is None else duration(seconds), seconds),
    ]


def _test_cells(test: PairedTest | str | None) -> list[Cell]:
    if not isinstance(test, PairedTest) or math.isnan(test.adjusted_p):
        return [Cell(NONE)] * 3
    difference = test.comparison.difference
    return [
        Cell(f"{difference.value:+.5f}", difference.value),
        Cell(f"{difference.low:+.5f} to {difference.high:+.5f}"),
        Cell(f"{test.adjusted_p:.3g}", test.adjusted_p),
    ]


def render(runs: Sequence[ComparedRun], split: str, tests: Tests, confidence: float, folder: Path) -> str:
    """The page. ``folder`` holds all runs."""
    sections = [
        f"<h2>Results on {split}</h2>{html_table(*results_table(runs, split, tests, confidence))}{_remarks(tests)}",
        _curves(runs, split),
        _configurations(runs),
    ]
    finished = sum(run.record.result is not None for run in runs)
    summary = f"{count(len(runs), 'run')} in {folder}, {finished:,} of them finished."
    return page(
        " and ".join(run.name for run in runs)
        if len(runs) == 2
        else f"{folder.name}: {count(len(runs), 'run')}",
        "comparison of runs",
        summary=escape(summary),
        content="\n".join(f"<section>{section}</section>" for section in sections if section),
    )


def _remarks(tests: Tests) -> str:
    lines = [f"{name} was not tested: {test}" for name, test in tests.items() if isinstance(test, str)]
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def _curves(runs: Sequence[ComparedRun], split: str) -> str:
    has_val = any(event.split == "val" for run in runs for event in run.record.evals)
    charts = comparison_charts(runs, "val" if has_val else split)
    return f"<h2>Curves</h2>{charts_html(charts, 'curves')}" if charts else ""


def _configurations(runs: Sequence[ComparedRun]) -> str:
    """The keys that differ: a row each, or a row a run where there are more runs than keys."""
    by_key = differences(runs)
    if not by_key:
        return "<h2>Configurations</h2><p>They are the same but for where they lie.</p>"
    names = [run.name for run in runs]
    if len(by_key) >= len(runs):
        columns = [Column("key", is_words=True), *(Column(name, is_words=True) for name in names)]
        rows: Rows = [[key, *values] for key, values in by_key.items()]
    else:
        columns = [Column("run", is_words=True), *(Column(key, is_words=True) for key in by_key)]
        rows = [list(row) for row in zip(names, *by_key.values(), strict=True)]
    return f"<h2>What differs in their configurations</h2>{html_table(columns, rows)}"
