"""OUTPUT/days.html: is retraining worth it, and each day's rows, unseen values, scores of the models before, and seconds."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean, stdev

from dlrm_app.days.day import read_seconds
from dlrm_app.days.days import read_records
from dlrm_app.days.record import DAYS, LINES, DayRecord, Scores
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
STEPS = ("encode", "replay", "judge", "train", "retrain", "export")
SURE = 1.96
"""Standard errors to each side of a mean over days: 95%."""
MAX_TICKS = 10


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
        _charts(output, records),
        f"<h2>Days</h2>{html_table(*_table(output, records))}",
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
    across = _day_axis(records)
    scored = [
        chart
        for key, title in (
            ("auc", "AUC on the next day"),
            ("logloss", "log loss, nats"),
            ("calibration", "calibration"),
        )
        if (chart := _scores_chart(records, across, key, title)) is not None
    ]
    rows = Chart("rows", across, linear_axis([float(r.rows) for r in records], from_zero=True))
    edges = [number - 0.5 for number in range(len(records) + 1)]
    rows.bars(edges, [float(record.rows) for record in records], "first")
    rows.tips(
        [(n, r.rows) for n, r in enumerate(records)], [f"{r.day}: {r.rows:,} rows" for r in records], "first"
    )
    others = [
        _lines(
            "values never seen, share of lookups",
            across,
            records,
            {"unseen": lambda record: record.unseen_share},
            percent,
        ),
        _lines(
            "ids",
            across,
            records,
            {
                "new": lambda record: record.vocabulary.new if record.vocabulary else None,
                "freed": lambda record: record.vocabulary.expired if record.vocabulary else None,
                "given again": lambda record: record.vocabulary.reused if record.vocabulary else None,
            },
            lambda value: f"{value:,.0f}",
        ),
        _seconds_chart(output, records, across),
    ]
    found = [rows, *(chart for chart in others if chart is not None)]
    learnt = f"<h2>Yesterday's model on each day</h2>{charts_html(scored, 'scores')}" if scored else ""
    return f"{learnt}<h2>What came and what it took</h2>{charts_html(found, 'rows')}"


def _day_axis(records: Sequence[DayRecord]) -> Axis:
    step = max(1, math.ceil(len(records) / MAX_TICKS * 2))
    ticks = [(float(n), record.day[5:]) for n, record in enumerate(records) if n % step == 0]
    return Axis(-0.5, len(records) - 0.5, ticks)


def _scores_chart(records: Sequence[DayRecord], across: Axis, key: str, title: str) -> Chart | None:
    """A metric of the three models by day; of yesterday's AUC also the interval."""
    points = {
        name: [
            (float(n), value)
            for n, record in enumerate(records)
            if (scores := getattr(record, name)) is not None and (value := getattr(scores, key)) is not None
        ]
        for name in MODELS
    }
    values = [y for line in points.values() for _, y in line]
    if not values:
        return None
    bars = (
        [(float(n), r.next_day) for n, r in enumerate(records) if r.next_day is not None]
        if key == "auc"
        else []
    )
    ends = [(n, s.auc_low, s.auc_high) for n, s in bars if s.auc_low is not None and s.auc_high is not None]
    heights = [*values, *(end for _, low, high in ends for end in (low, high))]
    note = "bars: 95% intervals" if ends else ""
    chart = Chart(title, across, linear_axis(heights), note=note)
    for n, low, high in ends:
        chart.error_bar(n, low, high, MODELS["next_day"][0])
    for name, line in reversed(points.items()):  # yesterday's model on top
        style, words = MODELS[name]
        if line:
            tips = [f"{records[int(x)].day}: {words} {y:.5f}" for x, y in line]
            chart.line(line, style, tips, words)
    return chart


def _lines(
    title: str,
    across: Axis,
    records: Sequence[DayRecord],
    values: dict[str, Callable[[DayRecord], float | None]],
    write: Callable[[float], str],
) -> Chart | None:
    """A line for each of ``values`` by day; None where none is known."""
    points = {
        name: [(float(n), float(y)) for n, record in enumerate(records) if (y := value(record)) is not None]
        for name, value in values.items()
    }
    heights = [y for line in points.values() for _, y in line]
    if not heights:
        return None
    chart = Chart(title, across, linear_axis(heights, from_zero=True, label=lambda value, _: write(value)))
    for style, (name, line) in zip(
        ("first", "second", "third", "fourth", "fifth", "sixth"), points.items(), strict=False
    ):
        if any(y for _, y in line):
            chart.line(line, style, [f"{records[int(x)].day}: {name} {write(y)}" for x, y in line], name)
    return chart


def _seconds_chart(output: Path, records: Sequence[DayRecord], across: Axis) -> Chart | None:
    spent = {record.day: read_seconds(output / DAYS / record.day) for record in records}

    def of(step: str) -> Callable[[DayRecord], float | None]:
        return lambda record: spent[record.day].get(step, [None])[0]

    return _lines(
        "seconds", across, records, {step: of(step) for step in STEPS}, lambda value: f"{value:,.0f}"
    )


def _table(output: Path, records: Sequence[DayRecord]) -> tuple[list[Column], Rows]:
    columns = [
        Column("day", is_words=True),
        Column("rows"),
        Column("never seen", "share of lookups of values that the vocabularies did not know"),
        *(
            Column(f"AUC, {name}", "on all of the day's rows, before they were learnt")
            for _, name in MODELS.values()
        ),
        Column("new model less yesterday's", "AUC on the rows held back, with its 95% interval"),
        Column("end", is_words=True),
    ]
    marks = _marks(output)
    rows: Rows = [
        [
            record.day,
            integer(record.rows),
            share(record.unseen_share),
            *(_auc(getattr(record, name)) for name in MODELS),
            _difference(record),
            "; ".join(
                filter(
                    None, [f"held back: {record.held}" if record.held else "published", marks.get(record.day)]
                )
            ),
        ]
        for record in reversed(records)
    ]
    return columns, rows


def _auc(scores: Scores | None) -> Cell:
    value = scores.auc if scores else None
    return Cell(fixed(value, 5), value)


def _difference(record: DayRecord) -> str:
    held = record.holdout
    if held is None or held.difference is None:
        return NONE
    return f"{held.difference:+.5f} ({held.low:+.5f} to {held.high:+.5f})"


def _marks(output: Path) -> dict[str, str]:
    """Day → why its record is no longer what its files would give."""
    try:
        lines = (output / LINES).read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    values = map(json.loads, lines)
    return {value["day"]: escape(value["mark"]) for value in values if value["mark"]}
