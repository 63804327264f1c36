"""dlrm-report: a run's page again, or a page and a table that compare several."""

import shlex
from pathlib import Path

from dlrm_app.config.report import ReportConfig
from dlrm_app.files import write_text
from dlrm_app.reports.comparison.runs import ComparedRun, common_folder, read_runs
from dlrm_app.reports.run.page import write_report
from dlrm_app.table import text_table


def report(config: ReportConfig) -> None:
    """Writes the page that ``config`` asks for and prints where it is. Raises DlrmError."""
    runs = read_runs(config.runs)
    if len(runs) == 1:
        print(write_report(runs[0].record.path, Path(config.output) if config.output else None))
        return
    print(compare(runs, config))


def compare(runs: list[ComparedRun], config: ReportConfig) -> Path:
    """Writes the page on ``runs``, prints its main table, and gives its path."""
    # these load torch, which one run's page does not need
    from dlrm_app.reports.comparison.page import render, results_table
    from dlrm_app.reports.comparison.paired import paired_tests

    split = config.split or shared_split(runs)
    tests = paired_tests(runs, split, config) if config.paired else {}
    folder = common_folder([run.record.path.resolve() for run in runs])
    path = Path(config.output) if config.output else folder / "compare.html"
    write_text(path, render(runs, split, tests, config.confidence, folder))
    print(f"{split}:\n{text_table(*results_table(runs, split, tests, config.confidence))}")
    best = max(runs, key=lambda run: score(run, split))
    print(f"next: dlrm-evaluate {shlex.quote(f'checkpoint={best.record.path}')} split={split}")
    return path


def shared_split(runs: list[ComparedRun]) -> str:
    """``test`` where every run was evaluated on it, else ``val``."""
    return "test" if all(run.final("test") for run in runs) else "val"


def score(run: ComparedRun, split: str) -> float:
    """AUC of the last evaluation, below all others where there is none."""
    event = run.final(split)
    return event.comparable_auc if event else float("-inf")
