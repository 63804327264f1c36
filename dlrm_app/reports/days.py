"""OUTPUT/days.html: is retraining worth it, and each day's rows, unseen values, scores of the models before, and seconds."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean, stdev

from dlrm_app.days.day import read_seconds
from dlrm_app.days.days import read_records
from dlrm_app.days.record import DAYS, DayRecord, Scores, read_marks
from dlrm_app.files import explained_disk_errors, write_text
from dlrm_app.reports.chart import Axis, Chart, charts_html, linear_axis
from dlrm_app.reports.page import Tile, page, tiles
from dlrm_app.table import Cell, Column, Rows, html_table, integer, share
from dlrm_app.text import NONE, count, duration, fixed, percent

MODELS = {
    "next_day": ("first", "yesterday's model"),
    "first_model": ("second", "the first day's model"),
    "full_retrain": ("third", "trained from scratch"),
}
"""Field of a record → the style and the name of its model."""
STYLES = ("first", "second", "third", "fourth", "fifth", "sixth")
STEPS = ("encode", "replay", "judge", "train", "retrain", "export")
SURE = 1.96
"""Standard errors to each side of a mean over days: 95%."""
MAX_TICKS = 5
Lines = Mapping[str, tuple[str, Callable[[DayRecord], float | None]]]
"""Name → its style and its value on a day."""


def write_days(output: Path) -> Path | None:
    """Writes the page from the days' records and gives its path; None where no day is done. Raises DataError."""
    records = read_records(output)
    if not records:
        return None
    published = [record for record in records if record.published]
    held = [record for record in records if record.held]
    unseen = [record.unseen_share for record in records if record.unseen_share is not None]
    last = published[-1].day if published else NONE
    shown = [
        Tile("days", integer(len(records)), f"{records[0].day} to {records[-1].day}"),
        Tile("published", Cell(last), f"{len(held)} held back" if held else "none was held back"),
        Tile("rows a day", integer(fmean(record.rows for record in records)), "the mean"),
        *(
            [Tile("values never seen", share(fmean(unseen)), "of a day's lookups, the mean")]
            if unseen
            else []
        ),
    ]
    sections = [
        f"<h2>Is retraining worth it?</h2>{_answers(output, records)}",
        tiles(shown),
        _problems(output, records),
        _charts(output, records),
        f"<h2>All days</h2>{html_table(*_table(output, records))}",
    ]
    path = output / "days.html"
    summary = "Each day's rows are scored by the models before they are learnt, so every score is on rows that are new to its model."
    with explained_disk_errors(output, "then run the same command again"):
        write_text(path, page(output.absolute().name, "days", summary=summary, sections=sections))
    return path


@dataclass(frozen=True)
class Gain:
    """Yesterday's model less another one in AUC: the mean over ``days``, its 95% interval, days on which it was ahead."""

    mean: float
    low: float
    high: float
    ahead: int
    days: int

    @property
    def verdict(self) -> str:
        """``Yes`` or ``No`` beyond chance, else that it is open."""
        if self.low > 0:
            return "Yes"
        return "No" if self.high < 0 else "Not shown yet"


def gain_over(records: Sequence[DayRecord], other: str) -> Gain | None:
    """The gain over the model in the field ``other``, over days on which the two are different models; None without any."""
    pairs = [
        (record.next_day.auc, scores.auc)
        for record in records
        if record.next_day is not None
        and (scores := getattr(record, other)) is not None
        and record.next_day.auc is not None
        and scores.auc is not None
        and scores != record.next_day
    ]
    if not pairs:
        return None
    gaps = [first - second for first, second in pairs]
    mean = fmean(gaps)
    error = SURE * stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.inf
    return Gain(mean, mean - error, mean + error, sum(gap > 0 for gap in gaps), len(gaps))


def _answers(output: Path, records: Sequence[DayRecord]) -> str:
    first, scratch = gain_over(records, "first_model"), gain_over(records, "full_retrain")
    if first is None:
        return "<p>Nothing can be said yet: that takes a third day, which yesterday's model and the first day's are judged on.</p>"
    lines = [
        f"<b>{first.verdict}.</b> On {first.ahead} of {count(first.days, 'day')} yesterday's model ranked the day's rows better than "
        f"the model that stopped on the first day: AUC {_gap(first)}."
    ]
    if scratch is not None:
        lines.append(
            f"Against the model trained from scratch its AUC is {_gap(scratch)}{_costs(output, records)}."
        )
    return "".join(f"<p>{line}</p>" for line in lines)


def _gap(gain: Gain) -> str:
    if math.isinf(gain.low):
        return f"{gain.mean:+.4f} on one day"
    return f"{gain.mean:+.4f} a day in the mean (95% interval over days {gain.low:+.4f} to {gain.high:+.4f})"


def _costs(output: Path, records: Sequence[DayRecord]) -> str:
    """What a training of one day and one from scratch took of the cores, in the mean."""
    seconds = [read_seconds(output / DAYS / record.day) for record in records]
    daily = [each["train"][1] for each in seconds if "train" in each]
    scratch = [each["retrain"][1] for each in seconds if "retrain" in each]
    if not daily or not scratch:
        return ""
    return f"; a day's training takes {duration(fmean(daily))} of the cores' time, one from scratch {duration(fmean(scratch))}"


def _charts(output: Path, records: Sequence[DayRecord]) -> str:
    spent = {record.day: read_seconds(output / DAYS / record.day) for record in records}

    def of_step(step: str) -> Callable[[DayRecord], float | None]:
        return lambda record: spent[record.day].get(step, [None])[0]

    def of_models(metric: str) -> Lines:
        # yesterday's model last, on top of the others
        return {name: (style, _field(field, metric)) for field, (style, name) in reversed(MODELS.items())}

    ids = {"new": "new", "freed": "expired", "given again": "reused"}
    intervals = [
        (number, record.next_day.auc_low, record.next_day.auc_high)
        for number, record in enumerate(records)
        if record.next_day is not None
        and record.next_day.auc_low is not None
        and record.next_day.auc_high is not None
    ]
    number: Callable[[float], str] = "{:,.0f}".format
    scores = [
        _chart("AUC on the next day", records, of_models("auc"), intervals=intervals),
        _chart("log loss on the next day, nats", records, of_models("logloss")),
        _chart("calibration on the next day", records, of_models("calibration")),
    ]
    others = [
        _chart("rows", records, {"": ("first", lambda record: record.rows)}, number),
        _chart(
            "values never seen, share of lookups", records, {"": ("first", lambda r: r.unseen_share)}, percent
        ),
        _chart(
            "ids",
            records,
            {
                name: (style, _field("vocabulary", ids[name]))
                for style, name in zip(STYLES, ids, strict=False)
            },
            number,
        ),
        _chart(
            "seconds",
            records,
            {step: (style, of_step(step)) for style, step in zip(STYLES, STEPS, strict=True)},
            number,
        ),
    ]
    return "".join(
        f"<h2>{title}</h2>{charts_html(found, name)}"
        for title, name, charts in (("Models", "models", scores), ("Days", "days", others))
        if (found := [chart for chart in charts if chart is not None])
    )


def _field(part: str, name: str) -> Callable[[DayRecord], float | None]:
    """The field ``name`` of a part of a day's record, where it has that part; nothing of the first day, all of whose ids are new."""
    return lambda record: getattr(getattr(record, part), name, None) if record.parent else None


def _chart(
    title: str,
    records: Sequence[DayRecord],
    lines: Lines,
    write: Callable[[float], str] | None = None,
    intervals: Sequence[tuple[int, float, float]] = (),
) -> Chart | None:
    """A line by day for each of ``lines``; from zero where ``write`` writes its values. None where no value is known."""
    points = {
        name: [(float(n), float(y)) for n, record in enumerate(records) if (y := value(record)) is not None]
        for name, (_, value) in lines.items()
    }
    heights = [y for line in points.values() for _, y in line]
    if not heights:
        return None
    step = max(1, math.ceil(len(records) / MAX_TICKS))
    days = [(float(n), record.day[5:]) for n, record in enumerate(records) if n % step == 0]
    heights += [end for _, *ends in intervals for end in ends]
    label = None if write is None else lambda value, _: write(value)
    chart = Chart(
        title,
        Axis(-0.5, len(records) - 0.5, days),
        linear_axis(heights, from_zero=write is not None, label=label),
        note="bars: 95% intervals" if intervals else "",
    )
    for n, low, high in intervals:
        chart.error_bar(n, low, high, "first")
    for name, line in points.items():
        if any(y for _, y in line):
            tips = [f"{records[int(x)].day} {name}: {write(y) if write else fixed(y, 5)}" for x, y in line]
            chart.line(line, lines[name][0], tips, name)
    return chart


def _table(output: Path, records: Sequence[DayRecord]) -> tuple[list[Column], Rows]:
    columns = [
        Column("day", is_words=True),
        Column("rows"),
        Column("never seen", "share of lookups of values that the vocabularies did not know"),
        *(
            Column(f"AUC, {name}", "on all rows of the day, before they were learnt")
            for _, name in MODELS.values()
        ),
        Column("new model less yesterday's", "AUC on the rows held back, with its 95% interval"),
        Column("end", is_words=True),
    ]
    rows: Rows = [
        [
            record.day,
            integer(record.rows),
            share(record.unseen_share),
            *(_auc(getattr(record, name)) for name in MODELS),
            _difference(record),
            "held back" if record.held else "published",
        ]
        for record in reversed(records)
    ]
    return columns, rows


def _problems(output: Path, records: Sequence[DayRecord]) -> str:
    """Days that were held back, and those that are not what their files would give now."""
    marks = read_marks(output)
    lines = [f"{record.day}: held back, {record.held}" for record in records if record.held]
    lines += [f"{day}: {mark}" for day, mark in marks.items()]
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="problems">{items}</ul>' if lines else ""


def _auc(scores: Scores | None) -> Cell:
    value = scores.auc if scores else None
    return Cell(fixed(value, 5), value)


def _difference(record: DayRecord) -> str:
    held = record.holdout
    if held is None or held.difference is None:
        return NONE
    return f"{held.difference:+.5f} ({held.low:+.5f} to {held.high:+.5f})"
