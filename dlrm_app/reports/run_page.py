"""A run's page: its main numbers, charts and evaluations, and how it was made."""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean

from dlrm_app.config.metrics import metric_of
from dlrm_app.files import write_text
from dlrm_app.records import Json
from dlrm_app.reports.chart import Axis, Chart, Point, charts_html, line_chart, linear_axis, without_peaks
from dlrm_app.reports.importance import importance_section
from dlrm_app.reports.page import Tile, details, page, tiles
from dlrm_app.reports.run_record import RunRecord, read_run
from dlrm_app.runs.checkpoint.evaluation import LEARNT, Evaluation
from dlrm_app.runs.events import PARTS, TITLES, TrainEvent
from dlrm_app.runs.shown_metrics import SHOWN_METRICS, shown_of_groups
from dlrm_app.table import Cell, Column, Columns, Rows, html_table, share
from dlrm_app.text import NONE, count, duration, fixed, percent, short


def write_report(run_folder: Path, path: Path | None = None, importance: Path | None = None) -> Path:
    """Writes ``path`` (None: ``run_folder``/report.html) from the run's other files, and returns it.

    ``importance``: a file of dlrm-evaluate that says which columns matter. Raises DataError if the folder holds no run
    or a damaged run, and ConfigError if the file is not about this run.
    """
    path = path or run_folder / "report.html"
    columns = importance_section(importance, run_folder) if importance else ""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render(read_run(run_folder), columns))
    return path


def render(record: RunRecord, importance: str) -> str:
    made_by = {"Dataset": record.dataset, "Configuration": record.config, "Environment": record.environment}
    charts = learning_charts(record)
    sections = [
        headline(record),
        judgements(record),
        f"<h2>Learning</h2>{charts_html(charts, 'learning')}" if charts else "<p>No steps were logged.</p>",
        _predictions(record),
        evaluations(record),
        importance,
        _step(record),
        "<h2>How it was made</h2>",
        *(details(name, values) for name, values in made_by.items() if values),
    ]
    return page(
        record.path.absolute().name, "training report", summary=escape(status(record)), sections=sections
    )


def _predictions(record: RunRecord) -> str:
    split = next((name for name in ("test", "val") if "roc" in record.curves.get(name, {})), None)
    if split is None:
        return ""
    step = record.curves[split]["step"]
    charts = charts_html(prediction_charts(record, split), "predictions")
    return f"<h2>Predictions on {split}</h2><p>Made with the weights after step {step:,}.</p>{charts}"


def headline(record: RunRecord) -> str:
    """Tiles: metrics of the last evaluation on test (or val), the best one on val, throughput, time, steps."""
    event = record.last_eval("test") or record.last_eval("val")
    reachable = record.dataset.get("best") or {}
    shown = [
        Tile(
            f"{event.split} {metric.title}",
            metric_cell(event, key, metric.decimals),
            f"best reachable {metric.text(reachable[key])}" if key in reachable else metric.remark,
        )
        for key, metric in SHOWN_METRICS.items()
        if event
    ]
    val = [event for event in record.evals if event.split == "val"]
    best = max(val, key=lambda event: event.merit(record.best_metric), default=None)
    if best is not None and best is not val[-1]:
        shown.append(_best_tile(best, record.best_metric))
    return tiles([*shown, *_cost_tiles(record)])


def _best_tile(best: Evaluation, name: str) -> Tile:
    metric, (merit, _) = metric_of(name), best.merit(name)
    text = NONE if metric is None or math.isinf(merit) else fixed(metric.sign * merit, 5)
    return Tile(
        f"best val {best.decides(metric.title if metric else name)}", text, f"after step {best.step:,}"
    )


def judgements(record: RunRecord) -> str:
    """The last judgement of each split with its likely causes; empty if the model has learnt."""
    parts = []
    events = [event for split in ("val", "test") if (event := record.last_eval(split))]
    for event, label, judgement in ((e, label, j) for e in events for label, j in e.by_label.items()):
        if judgement.verdict == LEARNT and not judgement.causes:
            continue
        causes = "".join(f"<li>{escape(advice)}</li>" for advice in judgement.advice)
        listed = f"<p>The likeliest causes first:</p><ul>{causes}</ul>" if causes else ""
        title = escape(event.split + f", {label}" * bool(label))
        parts.append(f"<p><b>{title}: {escape(judgement.says)}.</b></p>{listed}")
    return f"<h2>Judgement</h2>{''.join(parts)}" if parts else ""


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
    if not record.evals:
        return ""
    columns = {
        **{key: (metric.title, metric.decimals) for key, metric in SHOWN_METRICS.items()},
        "num_samples": ("rows", 0),
        "positives": ("positives", 0),
    }
    for key in [key for event in record.evals for key in event.metrics]:
        metric = metric_of(key)
        columns.setdefault(key, (metric.title if metric else key.replace("_", " "), 5))
    shown = [
        (f"{event.split}, step {event.step:,}{of}", each)
        for event in record.evals
        for of, each in [("", event), *((f": {name}", event.of_label(name)) for name in event.labels)]
    ]
    rows: Rows = [
        [
            title,
            *(metric_cell(each, key, decimals) for key, (_, decimals) in columns.items()),
            fixed(each.seconds, 2),
        ]
        for title, each in shown
    ]
    headings = ["split", *(name for name, _ in columns.values()), "seconds"]
    return f"<h2>Evaluations</h2>{html_table(headings, rows)}"


def _step(record: RunRecord) -> str:
    """The table of a step's parts, with shares as bars; empty if nothing was measured."""
    events = [event.step_ms for event in record.train if event.step_ms]
    events = events[1:] or events  # the first one has the slow steps of the start
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
    """A metric of an evaluation as text; a dash if there is none."""
    return fixed(event.metrics.get(key) if event else None, decimals)


def status(record: RunRecord) -> str:
    """One sentence about the progress of the run, its ranks and its device."""
    environment = record.environment
    device = environment.get("device", "an unknown device")
    where = f"{count(environment.get('world_size', 1), 'rank')} on {device}"
    started = str(environment.get("started", ""))[:16].replace("T", " ")
    begun = f", started {started}" if started else ""
    if record.result:
        return f"Finished after {count(record.last_step, 'step')}; {where}{begun}."
    return f"Not finished: the last event is of step {record.last_step:,}; {where}{begun}."


MAX_POINTS = 240
"""The most points of a line; more are averaged in groups."""
SPLIT_STYLES = {"train": "first", "val": "second", "test": "third"}


def learning_charts(record: RunRecord) -> list[Chart]:
    """The charts of loss, AUC, NE, calibration and throughput, if the run's events have them.

    NE and calibration of training are those of rows that the model had not learnt yet.
    """
    x = linear_axis([0, max(1, record.last_step)], "step", write=short)
    group = math.ceil(len(record.train) / MAX_POINTS)
    losses = train_points(record, lambda event: event.loss)
    speeds = train_points(record, lambda event: event.samples_per_second)
    of_training = [
        _metric_chart(record, "Loss, nats", "logloss", x, {"training": losses}),
        _metric_chart(record, "NE", "ne", x, {"training": train_points(record, lambda event: event.ne)}),
        _metric_chart(
            record,
            "Calibration",
            "calibration",
            x,
            {"training": train_points(record, lambda event: event.calibration)},
        ),
        line_chart("Training throughput, samples/s", x, {"": speeds}, _at_step, write=short),
    ]
    for chart in of_training:
        if chart and group > 1:
            chart.note = "; ".join(
                filter(None, [chart.note, f"each point is the mean of {group} log events"])
            )
    aucs = [_metric_chart(record, "AUC", "auc", x, {}), _label_chart(record, x), _group_chart(record, x)]
    charts = [of_training[0], *aucs, *of_training[1:]]
    return [chart for chart in charts if chart is not None]


def _metric_chart(
    record: RunRecord, title: str, key: str, x: Axis, train: Mapping[str, Sequence[Point]]
) -> Chart | None:
    lines = {**train, **{split: eval_points(record, split, key) for split in ("val", "test")}}
    lines = {name: points for name, points in lines.items() if points}
    best = (record.dataset.get("best") or {}).get(key)
    heights = without_peaks(lines) + ([] if best is None else [best])
    styles = [SPLIT_STYLES.get(name, "first") for name in lines]
    chart = line_chart(title, x, lines, _at_step, styles=styles, heights=heights)
    if chart and best is not None:
        chart.guide((x.low, best), (x.high, best))
        chart.note = f"dashed: best reachable, {best:.5f}"
    return chart


def _label_chart(record: RunRecord, x: Axis) -> Chart | None:
    names = dict.fromkeys(name for event in record.evals for name in event.labels)
    lines = {
        name: [(e.step, e.labels[name]["auc"]) for e in record.evals if e.split == "val" and name in e.labels]
        for name in names
    }
    return line_chart("AUC of other labels on val", x, lines, _at_step) if lines else None


def _group_chart(record: RunRecord, x: Axis) -> Chart | None:
    shown = shown_of_groups(dict.fromkeys(name for event in record.evals for name in event.metrics))
    lines = {metric.title: eval_points(record, "val", name) for name, metric in shown.items()}
    return line_chart("Metrics within groups on val", x, lines, _at_step) if lines else None


def _at_step(step: float) -> str:
    return f"step {short(step)}"


def eval_points(record: RunRecord, split: str, key: str) -> list[Point]:
    """A metric of the evaluations on ``split``, by step."""
    return [(e.step, e.metrics.get(key, math.nan)) for e in record.evals if e.split == split]


def train_points(record: RunRecord, value: Callable[[TrainEvent], float]) -> list[Point]:
    """A value of the train events by step: at most MAX_POINTS points, each the mean of neighbouring events."""
    points = [(event.step, value(event)) for event in record.train if not math.isnan(value(event))]
    group = math.ceil(len(points) / MAX_POINTS) or 1
    parts = [points[start : start + group] for start in range(0, len(points), group)]
    return [(fmean(x for x, _ in part), fmean(y for _, y in part)) for part in parts]


def prediction_charts(record: RunRecord, split: str) -> list[Chart]:
    """Charts of the curves in curves.json for ``split``."""
    curves, style = record.curves[split], SPLIT_STYLES[split]
    charts = [roc_chart(curves["roc"], style)] if curves["roc"] else []
    return [*charts, reliability_chart(curves["reliability"], style)]


def roc_chart(roc: Json, style: str) -> Chart:
    """The rate of true positives over the rate of false positives, for every threshold."""
    chart = Chart("ROC: true positive rate", linear_axis([0, 1], "false positive rate"), linear_axis([0, 1]))
    chart.guide((0, 0), (1, 1))
    points = list(zip(roc["false_positive_rate"], roc["true_positive_rate"], strict=True))
    tips = [
        f"called positive from {percent(threshold)} on: {percent(y)} of the positives, {percent(x)} of the negatives"
        for (x, y), threshold in zip(points, roc["threshold"], strict=True)
    ]
    chart.line(points, style, tips)
    return chart


def reliability_chart(bins: Json, style: str) -> Chart:
    """The observed rate over the mean prediction, in bins with about equal numbers of rows."""
    predicted, counts = bins["mean_prediction"], bins["count"]
    observed = [k / n for k, n in zip(bins["positives"], counts, strict=True)]
    axis = linear_axis([0, *predicted, *observed], "mean prediction", write=percent)
    note = f"{len(observed)} bins of about {_rows(sum(counts) // len(counts))} each"
    chart = Chart("Reliability: observed rate", axis, linear_axis([0, axis.high], write=percent), note=note)
    chart.guide((0, 0), (axis.high, axis.high))
    points = list(zip(predicted, observed, strict=True))
    tips = [
        f"predicted {percent(x)}, observed {percent(y)} of {_rows(n)}"
        for (x, y), n in zip(points, counts, strict=True)
    ]
    chart.line(points, style, tips)
    return chart


def _rows(number: float) -> str:
    """A number of rows, or the sum of their weights, as text."""
    return f"{number:,} rows" if isinstance(number, int) else f"rows of weight {number:,.4g}"
