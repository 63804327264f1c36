"""A run's page: the numbers that it is judged by, its charts and evaluations, and how it was made."""

from html import escape
from pathlib import Path
from statistics import fmean

from dlrm_app.files import write_text
from dlrm_app.reports.chart import charts_html
from dlrm_app.reports.page import Tile, details, page, tiles
from dlrm_app.reports.run_charts import learning_charts, prediction_charts
from dlrm_app.reports.run_record import RunRecord, read_run
from dlrm_app.runs.checkpoint.marker import Evaluation
from dlrm_app.runs.events import PARTS, TITLES
from dlrm_app.table import Cell, Column, Columns, Rows, html_table, share
from dlrm_app.text import count, duration, fixed, short

METRICS = {"auc": ("AUC", 5), "logloss": ("log loss", 5), "ne": ("NE", 4), "calibration": ("calibration", 4)}
REMARKS = {
    "auc": "0.5 is chance",
    "logloss": "nats a row",
    "ne": "1 is the mean rate alone",
    "calibration": "predicted over observed clicks",
}


def write_report(run_folder: Path, path: Path | None = None) -> Path:
    """Writes ``path`` (None: ``run_folder``/report.html) from the run's other files, and gives it.

    Raises DataError if the folder holds no run, or a damaged one.
    """
    path = path or run_folder / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render(read_run(run_folder)))
    return path


def render(record: RunRecord) -> str:
    """The page."""
    made_by = {"Dataset": record.dataset, "Configuration": record.config, "Environment": record.environment}
    charts = learning_charts(record)
    sections = [
        headline(record),
        f"<h2>Learning</h2>{charts_html(charts, 'learning')}" if charts else "<p>No steps were logged.</p>",
        _predictions(record),
        evaluations(record),
        _step(record),
        "<h2>How it was made</h2>",
        *(details(name, values) for name, values in made_by.items() if values),
    ]
    return page(
        record.path.absolute().name,
        "training report",
        summary=escape(status(record)),
        sections=sections,
    )


def _predictions(record: RunRecord) -> str:
    split = next((name for name in ("test", "val") if record.curves.get(name)), None)
    if split is None:
        return ""
    step = record.curves[split]["step"]
    charts = charts_html(prediction_charts(record, split), "predictions")
    return f"<h2>Predictions on {split}</h2><p>By the weights after step {step:,}.</p>{charts}"


def headline(record: RunRecord) -> str:
    """Tiles: metrics of the last evaluation on test (or val), the best AUC on val, throughput, time, steps."""
    event = record.last_eval("test") or record.last_eval("val")
    reachable = record.dataset.get("best") or {}
    shown = [
        Tile(
            f"{event.split} {name}",
            metric_cell(event, key, decimals),
            f"best reachable {reachable[key]:.{decimals}f}" if key in reachable else REMARKS[key],
        )
        for key, (name, decimals) in METRICS.items()
        if event
    ]
    val = [event for event in record.evals if event.split == "val"]
    best = max(val, key=lambda event: event.comparable_auc, default=None)
    if best is not None and best is not val[-1]:
        shown.append(Tile("best val AUC", metric_cell(best, "auc", 5), f"after step {best.step:,}"))
    return tiles([*shown, *_cost_tiles(record)])


def _cost_tiles(record: RunRecord) -> list[Tile]:
    shown = []
    train = record.train
    if record.result:
        speed, seconds = record.result["samples_per_second"], record.result["train_seconds"]
        wall_time = record.result.get("wall_seconds")
        remark = f"the last start took {duration(wall_time)} in all" if wall_time else ""
        shown.append(Tile("throughput", short(speed), "samples/s of training"))
        shown.append(Tile("training time", duration(seconds), remark))
    elif train:
        speed = train[-1].samples_per_second
        shown.append(Tile("throughput", short(speed), "samples/s of the last steps"))
    if record.last_step:
        remark = f"last training loss {fixed(train[-1].loss, 5)}" if train else ""
        shown.append(Tile("steps", f"{record.last_step:,}", remark))
    return shown


def evaluations(record: RunRecord) -> str:
    """All evaluations, with every number they have."""
    if not record.evals:
        return ""
    columns = {
        **METRICS,
        "num_samples": ("rows", 0),
        "positives": ("positives", 0),
        "seconds": ("seconds", 2),
    }
    for key in [key for event in record.evals for key in event.metrics]:
        columns.setdefault(key, (key.replace("_", " "), 5))
    rows: Rows = [
        [
            f"{event.split}, step {event.step:,}",
            *(metric_cell(event, key, decimals) for key, (_, decimals) in columns.items()),
        ]
        for event in record.evals
    ]
    headings = ["split", *(name for name, _ in columns.values())]
    return f"<h2>Evaluations</h2>{html_table(headings, rows)}"


def _step(record: RunRecord) -> str:
    """A line for each part, with its share as a bar; empty where none was measured."""
    events = [event.step_ms for event in record.train if event.step_ms]
    events = events[1:] or events  # the first has the start's slow steps
    means = {part: fmean(step_ms.get(part, 0.0) for step_ms in events) for part in PARTS if events}
    total = sum(means.values())
    if not total:
        return ""
    rows: list[list[str | Cell]] = [
        [TITLES[part], fixed(ms, 2), share(ms / total), PARTS[part]] for part, ms in means.items() if ms
    ]
    rows.append(["all", fixed(total, 2), "", ""])
    columns: Columns = ["part", "ms a step", "share", Column("what it is", is_words=True)]
    return f"<h2>Where a step's time goes</h2>{html_table(columns, rows)}"


def metric_cell(event: Evaluation | None, key: str, decimals: int) -> str:
    """A metric of an evaluation; a dash where there is none."""
    return fixed(event.metrics.get(key) if event else None, decimals)


def status(record: RunRecord) -> str:
    """One sentence: how far the run has come, and on what."""
    environment = record.environment
    device = environment.get("device", "an unknown device")
    where = f"{count(environment.get('world_size', 1), 'rank')} on {device}"
    started = str(environment.get("started", ""))[:16].replace("T", " ")
    begun = f", started {started}" if started else ""
    if record.result:
        return f"Finished after {count(record.last_step, 'step')}; {where}{begun}."
    return f"Not finished: the last event is of step {record.last_step:,}; {where}{begun}."
