"""Puts the sections together into one page that needs nothing from elsewhere."""

from html import escape
from pathlib import Path

from dlrm_app.files import write_text
from dlrm_app.reports.chart import charts_html
from dlrm_app.reports.page import configuration, page
from dlrm_app.reports.run.convergence import convergence_section
from dlrm_app.reports.run.details import (
    changes_section,
    dataset_section,
    environment_section,
    next_section,
    plan_section,
)
from dlrm_app.reports.run.headline import evaluations, headline, status
from dlrm_app.reports.run.health_section import health_section
from dlrm_app.reports.run.learning_charts import learning_charts
from dlrm_app.reports.run.prediction_charts import prediction_charts
from dlrm_app.reports.run.run_record import RunRecord, read_run
from dlrm_app.reports.run.step_section import step_section


def write_report(run_folder: Path, path: Path | None = None) -> Path:
    """Writes ``path`` (None: ``run_folder``/report.html) from the run's other files, and gives it.

    Raises DataError if the folder holds no run, or a damaged one.
    """
    path = path or run_folder / "report.html"
    write_text(path, render(read_run(run_folder)))
    return path


def render(record: RunRecord) -> str:
    """The page."""
    sections = [
        headline(record),
        _learning(record),
        _predictions(record),
        convergence_section(record),
        evaluations(record),
        health_section(record),
        step_section(record),
        dataset_section(record),
        "<h2>How it was made</h2>",
        changes_section(record),
        configuration(record.config),
        plan_section(record),
        environment_section(record),
        next_section(record),
    ]
    return page(
        record.path.absolute().name,
        "training report",
        summary=escape(status(record)),
        content="\n".join(f"<section>{section}</section>" for section in sections if section),
    )


def _learning(record: RunRecord) -> str:
    charts = learning_charts(record)
    return f"<h2>Learning</h2>{charts_html(charts, 'learning')}" if charts else "<p>No steps were logged.</p>"


def _predictions(record: RunRecord) -> str:
    split = next((name for name in ("test", "val") if record.curves.get(name, {}).get("histogram")), None)
    if split is None:
        return ""
    step = record.curves[split]["step"]
    charts = charts_html(prediction_charts(record, split), "predictions")
    return f"<h2>Predictions on {split}</h2><p>By the weights after step {step:,}.</p>{charts}"
