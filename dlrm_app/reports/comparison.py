"""Compares several runs: curves by rows trained on, results, and differences between their configurations."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from dlrm_app.config.report import ReportConfig
from dlrm_app.errors import Problem, refuse_if
from dlrm_app.files import output_problems, write_text
from dlrm_app.records import leaves
from dlrm_app.reports.chart import STYLES, Chart, Point, charts_html, line_chart, linear_axis, without_peaks
from dlrm_app.reports.page import page
from dlrm_app.reports.run_page import eval_points, metric_cell, train_points, write_report
from dlrm_app.reports.run_record import RunRecord, read_run
from dlrm_app.result import Paragraph, Result
from dlrm_app.runs.shown_metrics import SHOWN_METRICS
from dlrm_app.table import Column, Columns, Rows, html_table
from dlrm_app.text import NONE, count, duration, listed, short

PLACE_KEYS = ("output", "resume")
"""Keys of a run's place, which do not describe the run."""
Runs = Mapping[str, RunRecord]
"""Runs by unique names."""


def check_runs(config: ReportConfig) -> None:
    """Raises ConfigError with every invalid value and every folder without a run."""
    problems = config.problems()
    if not config.runs:
        problems.append(
            Problem(
                "runs",
                "must name at least one run",
                "write dlrm-report RUN, or dlrm-report RUN RUN to compare them",
            )
        )
    problems += [
        Problem(folder, "holds no run (no config.yaml in it or below)", "name a folder that dlrm-train wrote")
        for folder in config.runs
        if not run_folders(Path(folder))
    ]
    if config.importance is not None:
        several = len(config.runs) > 1 or any(len(run_folders(Path(folder))) > 1 for folder in config.runs)
        rule = "is for the page of one run" if several else "does not exist"
        if several or not Path(config.importance).is_file():
            cure = (
                "name one run"
                if several
                else "give a file that dlrm-evaluate importance.repeats=3 has written"
            )
            problems.append(Problem("importance", rule, cure, config.importance))
    if config.output is not None:
        problems += output_problems("output", Path(config.output))
    refuse_if(problems)


def run_folders(folder: Path) -> list[Path]:
    """``folder`` if it is a run; otherwise the runs in it or one level below, where sweeps write them."""
    if (folder / "config.yaml").is_file():
        return [folder]
    return sorted({path.parent for pattern in ("*", "*/*") for path in folder.glob(f"{pattern}/config.yaml")})


def read_runs(folders: Sequence[str]) -> dict[str, RunRecord]:
    """Reads every run in ``folders``, once and in that order. Raises DataError for a damaged one."""
    by_path = {path.resolve(): path for folder in folders for path in run_folders(Path(folder))}
    common = os.path.commonpath([path.parent for path in by_path])
    return {str(path.relative_to(common)): read_run(typed) for path, typed in by_path.items()}


@dataclass(frozen=True)
class Page(Result):
    """Writes a page at ``path`` about ``runs`` (folders). ``table``: title and content of a table about them."""

    path: Path
    runs: tuple[Path, ...]
    table: tuple[str, tuple[Columns, Rows]] | None = None
    warning: str = ""

    def paragraphs(self) -> Iterable[Paragraph]:
        if self.table is not None:
            title, table = self.table
            yield f"{title}:"
            yield table
        if self.warning:
            yield self.warning
        yield str(self.path)


def report_runs(config: ReportConfig) -> Page:
    """Writes the page of a run, or a comparison of several. Raises DlrmError."""
    runs = read_runs(config.runs)
    folders = tuple(record.path for record in runs.values())
    if len(folders) == 1:
        output, importance = (Path(each) if each else None for each in (config.output, config.importance))
        return Page(write_report(folders[0], output, importance), folders)
    return write_comparison(runs, config.split, config.output)


def write_comparison(runs: Runs, split: str | None, output: str | None) -> Page:
    """Writes the page about ``runs``.

    ``split``: None for test if every run was evaluated on it, otherwise val.
    """
    if split is None:
        split = "test" if all(record.last_eval("test") for record in runs.values()) else "val"
    folder = Path(os.path.commonpath([record.path.resolve().parent for record in runs.values()]))
    path = Path(output) if output else folder / "compare.html"
    results = results_table(runs, split)
    charts = comparison_charts(runs, split)
    warning = other_rows(runs, split)
    sections = [
        f"<h2>Results on {split}</h2>{html_table(*results)}{f'<p><b>{escape(warning)}</b></p>' * bool(warning)}",
        f"<h2>Curves</h2>{charts_html(charts, 'curves')}" if charts else "",
        _configurations(runs),
    ]
    finished = sum(record.result is not None for record in runs.values())
    number = count(len(runs), "run")
    title = " and ".join(runs) if len(runs) == 2 else f"{folder.name}: {number}"
    summary = escape(f"{number} in {folder}, {finished:,} of them finished.")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page(title, "comparison of runs", summary=summary, sections=sections))
    return Page(path, tuple(record.path for record in runs.values()), (split, results), warning)


def other_rows(runs: Runs, split: str) -> str:
    """A warning if runs were measured on other rows of ``split``, by the rows' number and clicks; empty if not."""
    measured: dict[tuple[float | None, float | None], list[str]] = {}
    for name, record in runs.items():
        if event := record.last_eval(split):
            rows = event.metrics.get("num_samples"), event.metrics.get("positives")
            measured.setdefault(rows, []).append(name)
    if len(measured) < 2:
        return ""
    groups = "; ".join(
        f"{listed(names)}: {rows or 0:,.0f} rows, {clicks or 0:,.0f} clicks"
        for (rows, clicks), names in measured.items()
    )
    return f"not comparable: the runs were measured on different rows of {split} ({groups})"


def results_table(runs: Runs, split: str) -> tuple[list[Column], Rows]:
    """A row for each run: metrics of its last evaluation on ``split``, cost and speed."""
    columns = [
        Column("run", is_words=True),
        *(Column(metric.title) for metric in SHOWN_METRICS.values()),
        *map(Column, ("steps", "rows trained", "samples/s", "time")),
    ]
    return columns, [_row(name, record, split) for name, record in runs.items()]


def _row(name: str, record: RunRecord, split: str) -> list[str]:
    result, rows = record.result or {}, record.last_step * record.batch_size
    latest = record.train[-1].samples_per_second if record.train else None
    speed, seconds = result.get("samples_per_second") or latest, result.get("train_seconds")
    return [
        name if record.result else f"{name} (not finished)",
        *(metric_cell(record.last_eval(split), key, each.decimals) for key, each in SHOWN_METRICS.items()),
        f"{record.last_step:,}",
        short(rows),
        short(speed),
        NONE if seconds is None else duration(seconds),
    ]


def comparison_charts(runs: Runs, split: str) -> list[Chart]:
    """Charts by rows trained on: AUC and log loss (on val if a run has it, else on ``split``), loss, throughput."""
    if any(event.split == "val" for record in runs.values() for event in record.evals):
        split = "val"

    drawn = dict(list(runs.items())[: len(STYLES)])
    most = max(record.last_step * record.batch_size for record in drawn.values())
    x = linear_axis([0, max(1, most)], "rows trained on", write=short)

    def chart(
        title: str, curve: Callable[[RunRecord], list[Point]], write: Callable[[float], str] | None = None
    ) -> Chart | None:
        lines = {
            name: [(step * record.batch_size, y) for step, y in curve(record)]
            for name, record in drawn.items()
        }
        heights = without_peaks(lines)
        made = line_chart(title, x, lines, lambda rows: f"{short(rows)} rows", write=write, heights=heights)
        if made and len(runs) > len(drawn):
            made.note = f"not drawn: {count(len(runs) - len(drawn), 'more run')}"
        return made

    charts = [
        chart(f"AUC on {split}", lambda run: eval_points(run, split, "auc")),
        chart(f"Log loss on {split}", lambda run: eval_points(run, split, "logloss")),
        chart("Training loss", lambda run: train_points(run, lambda event: event.loss)),
        chart(
            "Training throughput, samples/s",
            lambda run: train_points(run, lambda event: event.samples_per_second),
            short,
        ),
    ]
    return [each for each in charts if each is not None]


def _configurations(runs: Runs) -> str:
    by_key = differences(runs)
    if not by_key:
        return "<h2>Configurations</h2><p>They are the same except for their folders.</p>"
    columns = [Column(name, is_words=True) for name in ("key", *runs)]
    rows: Rows = [[key, *values] for key, values in by_key.items()]
    return f"<h2>What differs in their configurations</h2>{html_table(columns, rows)}"


def differences(runs: Runs) -> dict[str, list[str]]:
    """Key → every run's value, for the keys whose values differ; a dash if a run has none."""
    flat = [_described(record) for record in runs.values()]
    keys = dict.fromkeys(key for values in flat for key in values)
    rows = {key: [values.get(key, NONE) for values in flat] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def _described(record: RunRecord) -> dict[str, str]:
    described = {
        key: "null" if value is None else str(value)
        for key, value in leaves({key: _named(value) for key, value in record.config.items()})
        if key not in PLACE_KEYS
    }
    for key, name in (("world_size", "ranks"), ("device", "device"), ("threads_per_rank", "threads a rank")):
        if key in record.environment:
            described[name] = str(record.environment[key])
    if record.dataset:
        described["dataset's fingerprint"] = str(record.dataset["fingerprint"])[:12]
    return described


def _named(value: object) -> object:
    """``value`` with every list of mappings turned into a mapping by the items' names."""
    if isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
        value = {item.get("name", index): item for index, item in enumerate(value)}
    return {key: _named(part) for key, part in value.items()} if isinstance(value, Mapping) else value
