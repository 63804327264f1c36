"""OUTPUT/days.html: is retraining worth it, and each day's scores, rows, unseen values, ids and seconds."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from html import escape
from pathlib import Path
from statistics import fmean, stdev

from dlrm_app.encoding.row_samples import Z_95
from dlrm_app.errors import DlrmError
from dlrm_app.files import explained_disk_errors, write_text
from dlrm_app.locks import held_lock
from dlrm_app.reports.chart import Axis, Chart, charts_html, line_chart
from dlrm_app.reports.page import page
from dlrm_app.table import html_table
from dlrm_app.text import count, duration, percent
from dlrm_app.tools.daily.gate import rules_rows
from dlrm_app.tools.daily.record import DAYS, LOCK, DayRecord, read_marks, read_records, read_seconds

MODELS = {
    "full_retrain": "trained from scratch",
    "first_model": "the first day's model",
    "next_day": "yesterday's model",
}
"""Field of a record → the name of its model. The last one is drawn on top."""
STYLES = ("third", "second", "first", "fourth", "fifth", "sixth")
"""Colours of the lines of a chart."""
STEPS = ("encode", "replay", "judge", "train", "retrain", "export")
MAX_TICKS = 5
Values = Sequence[float | None]
"""A value for each day."""


def write_days(output: Path) -> Path | None:
    """Writes the page from the days' records and returns its path. Raises DataError.

    None if no day is done, or if another dlrm-days works there: it writes the page when it has finished.
    """
    if not (records := read_records(output)):
        return None
    with ExitStack() as stack:
        try:
            stack.enter_context(held_lock(output / LOCK, "another dlrm-days writes the page"))
        except DlrmError:
            return None
        return _write_page(output, records)


def _write_page(output: Path, records: Sequence[DayRecord]) -> Path:
    seconds = {record.day: read_seconds(output / DAYS / record.day) for record in records}
    problems = [f"{record.day}: held back, {record.held}" for record in records if record.held]
    problems += [f"{day}: {mark}" for day, mark in read_marks(output).items()]
    items = "".join(f"<li>{escape(problem)}</li>" for problem in problems)
    sections = [
        f"<h2>Is retraining worth it?</h2>{_answer(records, seconds)}",
        f'<ul class="problems">{items}</ul>' if items else "",
        charts_html(_charts(records, seconds), "days"),
        f"<h2>The gate on {records[-1].day}</h2>{html_table(*rules_rows(records[-1].rules))}",
    ]
    path = output / "days.html"
    summary = (
        "Each day's rows are scored before any model is trained on them, "
        "so every score is on rows that are new to its model."
    )
    with explained_disk_errors(output, "then run the same command again"):
        write_text(path, page(output.absolute().name, "days", summary=summary, sections=sections))
    return path


def gain_over(records: Sequence[DayRecord], other: str) -> tuple[float, float, list[float]]:
    """(mean gain in AUC of yesterday's model over the model in the field ``other``, its standard error, gain by day).

    Only days on which the two models differ count; NaN if there are too few.
    """
    pairs = [(record.next_day, getattr(record, other)) for record in records]
    gains = [a.auc - b.auc for a, b in pairs if a and b and a != b and None not in (a.auc, b.auc)]
    error = stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
    return fmean(gains) if gains else math.nan, error, gains


def _answer(records: Sequence[DayRecord], seconds: Mapping[str, Mapping[str, float]]) -> str:
    mean, error, gains = gain_over(records, "first_model")
    if not gains:
        return (
            "<p>Nothing can be said yet: a third day is needed, "
            "to compare yesterday's model with the first day's.</p>"
        )
    is_shown = abs(mean) > Z_95 * error
    verdict = ("Yes" if mean > 0 else "No") if is_shown else "Not shown yet"
    ahead = sum(gain > 0 for gain in gains)
    text = (
        f"<b>{verdict}.</b> On {ahead} of {count(len(gains), 'day')} yesterday's model ranked the day's rows better "
        f"than the model that stopped on the first day: AUC {_interval(mean, error)}."
    )
    mean, error, gains = gain_over(records, "full_retrain")
    daily, scratch = (
        [each[step] for each in seconds.values() if step in each] for step in ("train", "retrain")
    )
    if gains:
        text += f" Against the model trained from scratch its AUC is {_interval(mean, error)}."
    if daily and scratch:
        text += (
            f" A day's training takes {duration(fmean(daily))}, one from scratch {duration(fmean(scratch))}."
        )
    return f"<p>{text}</p>"


def _interval(mean: float, error: float) -> str:
    if math.isnan(error):
        return f"{mean:+.4f} on one day"
    low, high = mean - Z_95 * error, mean + Z_95 * error
    return f"{mean:+.4f} a day in the mean (95% interval over days {low:+.4f} to {high:+.4f})"


def _charts(records: Sequence[DayRecord], seconds: Mapping[str, Mapping[str, float]]) -> list[Chart]:
    def of_part(part: str, name: str) -> Values:
        """A field of a part of the records; None for the first day, on which all ids are new."""
        return [getattr(getattr(record, part), name, None) if record.parent else None for record in records]

    def of_models(metric: str) -> dict[str, Values]:
        return {name: of_part(field, metric) for field, name in MODELS.items()}

    bars = of_part("next_day", "auc_low"), of_part("next_day", "auc_high")
    ids = {"new": "new", "freed": "expired", "given again": "reused"}
    number: Callable[[float], str] = "{:,.0f}".format
    days = [record.day for record in records]
    unseen = [record.unseen_share for record in records]
    labels = dict.fromkeys(name for record in records for name in record.labels)
    of_labels: dict[str, Values] = {
        name: [
            day.next_day.auc if (day := record.labels.get(name)) and day.next_day else None
            for record in records
        ]
        for name in labels
    }
    charts = [
        _chart("AUC on the next day", days, of_models("auc"), bars=bars),
        _chart("AUC of other labels on the next day", days, of_labels),
        _chart("log loss on the next day, nats", days, of_models("logloss")),
        _chart("calibration on the next day", days, of_models("calibration")),
        _chart("rows", days, {"": [record.rows for record in records]}, number),
        _chart("values never seen, share of lookups", days, {"": unseen}, percent),
        _chart("ids", days, {name: of_part("vocabulary", field) for name, field in ids.items()}, number),
        _chart("seconds", days, {step: [seconds[day].get(step) for day in days] for step in STEPS}, number),
    ]
    return [chart for chart in charts if chart is not None]


def _chart(
    title: str,
    days: Sequence[str],
    lines: Mapping[str, Values],
    write: Callable[[float], str] | None = None,
    bars: tuple[Values, Values] = ((), ()),
) -> Chart | None:
    """A chart by day of those ``lines`` that are not always 0. ``write`` formats values; the axis then begins at 0."""
    step = math.ceil(len(days) / MAX_TICKS)
    x = Axis(-0.5, len(days) - 0.5, [(float(n), day[5:]) for n, day in enumerate(days) if n % step == 0])
    styles = {
        name: style for (name, values), style in zip(lines.items(), STYLES, strict=False) if any(values)
    }
    points = {
        name: [(float(n), value) for n, value in enumerate(lines[name]) if value is not None]
        for name in styles
    }
    chart = line_chart(
        title,
        x,
        points,
        lambda n: days[int(n)],
        styles=list(styles.values()),
        write=write,
        heights=[value for values in (*lines.values(), *bars) for value in values if value is not None],
    )
    if chart and any(bars):
        chart.note = "bars: 95% intervals"
    for n, (low, high) in enumerate(zip(*bars, strict=True)):
        if chart and low is not None and high is not None:
            chart.error_bar(n, low, high, "first")
    return chart
