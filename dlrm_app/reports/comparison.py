"""Several runs side by side: curves by rows trained on, results, and what differs in their configurations."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from dlrm_app.config.scoring import ReportConfig
from dlrm_app.errors import refuse_if
from dlrm_app.evaluation.result import PairedTest
from dlrm_app.files import output_problems, write_text
from dlrm_app.records import leaves
from dlrm_app.reports.chart import Chart, Point, charts_html, linear_axis
from dlrm_app.reports.page import page
from dlrm_app.reports.run_charts import thin, without_peaks
from dlrm_app.reports.run_page import METRICS
from dlrm_app.reports.run_record import RunRecord, read_run
from dlrm_app.runs.checkpoint.marker import Evaluation
from dlrm_app.runs.events import TrainEvent
from dlrm_app.table import Cell, Column, Columns, Rows, html_table, text_table
from dlrm_app.text import NONE, count, duration, fixed, next_line, short

OF_THE_FOLDER = ("output", "resume")
"""Keys that say where a run lies, not what it is."""


@dataclass(frozen=True)
class ComparedRun:
    """A run under the ``name`` that tells it from the others."""

    name: str
    record: RunRecord

    @property
    def batch_size(self) -> int:
        """Rows of a step, all ranks together."""
        return int(self.record.config.get("trainer", {}).get("global_batch_size", 1))

    def final(self, split: str) -> Evaluation | None:
        """Its latest evaluation on ``split``."""
        return self.record.last_eval(split)


def check_runs(config: ReportConfig) -> None:
    """Raises ConfigError with every value that cannot work and every folder that holds no run."""
    problems = config.problems()
    if not config.runs:
        problems.append("name at least one run: dlrm-report RUN, or dlrm-report RUN RUN to compare them")
    problems += [
        f"{folder} holds no run (no config.yaml in it or in the folders below): name a folder that dlrm-train wrote"
        for folder in config.runs
        if not run_folders(Path(folder))
    ]
    if config.output is not None:
        problems += output_problems("output", Path(config.output))
    refuse_if(problems)


def run_folders(folder: Path) -> list[Path]:
    """``folder`` if it is a run; else the runs in it or one folder further down, as sweeps write them."""
    if (folder / "config.yaml").is_file():
        return [folder]
    return sorted({path.parent for pattern in ("*", "*/*") for path in folder.glob(f"{pattern}/config.yaml")})


def read_runs(folders: Sequence[str]) -> list[ComparedRun]:
    """Every run in ``folders``, once and in that order. Raises DataError for a damaged one."""
    by_path = {path.resolve(): path for folder in folders for path in run_folders(Path(folder))}
    records = [read_run(path) for path in by_path.values()]
    common = common_folder(list(by_path))
    return [
        ComparedRun(str(path.relative_to(common)), record)
        for path, record in zip(by_path, records, strict=True)
    ]


def common_folder(paths: Sequence[Path]) -> Path:
    """The deepest folder that holds all of the absolute ``paths``."""
    return Path(os.path.commonpath([path.parent for path in paths]))


def differences(runs: Sequence[ComparedRun]) -> dict[str, list[str]]:
    """Key → every run's value, for the keys whose values are not all the same; a dash where a run has none."""
    flat = [_described(run.record) for run in runs]
    keys = dict.fromkeys(key for values in flat for key in values)
    rows = {key: [values.get(key, "–") for values in flat] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def _described(record: RunRecord) -> dict[str, str]:
    """A run's configuration by dotted keys, and what it ran on."""
    described = {
        key: "null" if value is None else str(value)
        for key, value in leaves(_named(record.config))
        if key not in OF_THE_FOLDER
    }
    for key, name in (("world_size", "ranks"), ("device", "device"), ("threads_per_rank", "threads a rank")):
        if key in record.environment:
            described[name] = str(record.environment[key])
    if record.dataset:
        described["dataset's fingerprint"] = str(record.dataset["fingerprint"])[:12]
    return described


def _named(value: Any) -> Any:
    """``value`` with every list of mappings as a mapping by the items' names."""
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        value = {
            item.get("name", index) if isinstance(item, Mapping) else index: item
            for index, item in enumerate(value)
        }
    return {key: _named(part) for key, part in value.items()} if isinstance(value, Mapping) else value


STYLES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
"""Colours; no more runs than these are drawn."""

Curve = Callable[[ComparedRun], list[Point]]


def comparison_charts(runs: Sequence[ComparedRun], split: str) -> list[Chart]:
    """AUC and log loss of ``split`` by rows trained on, training loss and throughput; what no run has is left out."""
    charts = [
        _chart(runs, f"AUC on {split}", lambda run: _evals(run, split, "auc"), 5),
        _chart(runs, f"Log loss on {split}", lambda run: _evals(run, split, "logloss"), 5),
        _chart(runs, "Training loss", lambda run: _steps(run, lambda event: event.loss), 5),
        _chart(
            runs,
            "Training throughput, samples/s",
            lambda run: _steps(run, lambda event: event.samples_per_second),
            None,
        ),
    ]
    return [chart for chart in charts if chart is not None]


def _chart(runs: Sequence[ComparedRun], title: str, curve: Curve, decimals: int | None) -> Chart | None:
    """``decimals`` of the values that are shown; None: three digits that count, on an axis from 0."""
    lines = {run.name: curve(run) for run in runs[: len(STYLES)]}
    heights = [y for points in lines.values() for y in without_peaks([y for _, y in points])]
    if not any(map(math.isfinite, heights)):
        return None
    most = max(x for points in lines.values() for x, _ in points)
    x_axis = linear_axis(
        [0, most], "rows trained on", label=lambda value, _: short(value), ends_on_ticks=False
    )
    if decimals is None:
        y_axis = linear_axis(heights, label=lambda value, _: short(value), from_zero=True)
    else:
        y_axis = linear_axis(heights)
    left_out = len(runs) - len(lines)
    note = f"not drawn: {count(left_out, 'more run')}" if left_out else ""
    chart = Chart(title, x_axis, y_axis, note=note)
    for (name, points), style in zip(lines.items(), STYLES, strict=False):
        values = [short(y) if decimals is None else fixed(y, decimals) for _, y in points]
        tips = [f"{name}, {short(x)} rows: {value}" for (x, _), value in zip(points, values, strict=True)]
        chart.line(points, style, tips, name)
    return chart


def _evals(run: ComparedRun, split: str, key: str) -> list[Point]:
    events = [event for event in run.record.evals if event.split == split]
    return [(event.step * run.batch_size, event.metrics.get(key, math.nan)) for event in events]


def _steps(run: ComparedRun, value: Callable[[TrainEvent], float]) -> list[Point]:
    return thin([(event.step * run.batch_size, value(event)) for event in run.record.train])


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
    metrics = event.metrics if event else {}
    result = record.result or {}
    speed = result.get("samples_per_second") or (
        record.train[-1].samples_per_second if record.train else None
    )
    seconds = result.get("train_seconds")
    return [
        run.name if record.result else f"{run.name} (not finished)",
        *(
            Cell(fixed(metrics.get(key), decimals), metrics.get(key))
            for key, (_, decimals) in METRICS.items()
        ),
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
    refusals = [f"{name} was not tested: {test}" for name, test in tests.items() if isinstance(test, str)]
    remarks = "".join(f"<p>{escape(line)}</p>" for line in refusals)
    sections = [
        f"<h2>Results on {split}</h2>{html_table(*results_table(runs, split, tests, confidence))}{remarks}",
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
        sections=sections,
    )


def _curves(runs: Sequence[ComparedRun], split: str) -> str:
    has_val = any(event.split == "val" for run in runs for event in run.record.evals)
    charts = comparison_charts(runs, "val" if has_val else split)
    return f"<h2>Curves</h2>{charts_html(charts, 'curves')}" if charts else ""


def _configurations(runs: Sequence[ComparedRun]) -> str:
    """The keys that differ: a row each, or a row a run where there are more runs than keys."""
    by_key = differences(runs)
    if not by_key:
        return "<h2>Configurations</h2><p>They are the same except for their folders.</p>"
    names = [run.name for run in runs]
    if len(by_key) >= len(runs):
        columns = [Column("key", is_words=True), *(Column(name, is_words=True) for name in names)]
        rows: Rows = [[key, *values] for key, values in by_key.items()]
    else:
        columns = [Column("run", is_words=True), *(Column(key, is_words=True) for key in by_key)]
        rows = [list(row) for row in zip(names, *by_key.values(), strict=True)]
    return f"<h2>What differs in their configurations</h2>{html_table(columns, rows)}"


def write_comparison(
    runs: Sequence[ComparedRun], split: str, tests: Tests, confidence: float, output: str | None
) -> Path:
    """Writes the page on ``runs``, prints its main table and what to type next, and gives its path."""
    folder = common_folder([run.record.path.resolve() for run in runs])
    path = Path(output) if output else folder / "compare.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render(runs, split, tests, confidence, folder))
    print(f"{split}:\n{text_table(*results_table(runs, split, tests, confidence))}")
    best = max(runs, key=lambda run: event.comparable_auc if (event := run.final(split)) else -math.inf)
    print(next_line("dlrm-evaluate", {"checkpoint": best.record.path, "split": split}))
    return path


def shared_split(runs: Sequence[ComparedRun]) -> str:
    """``test`` where every run was evaluated on it, else ``val``."""
    return "test" if all(run.final("test") for run in runs) else "val"
