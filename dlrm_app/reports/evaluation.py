"""An evaluation as a page, and the importance of features as a table and a chart."""

import math
from html import escape

from dlrm_app.evaluation.delong import Interval
from dlrm_app.evaluation.evaluation_result import EvaluationResult
from dlrm_app.evaluation.importance import Importance
from dlrm_app.reports.axis import Axis, linear_axis
from dlrm_app.reports.chart import WIDE, Chart, charts_html
from dlrm_app.reports.page import page
from dlrm_app.table import Cell, Column, Rows, html_table, text_table
from dlrm_app.text import NONE

MAX_BARS = 20
"""Features in the chart, whose names stand side by side below it."""


def format_importance(importance: Importance) -> str:
    """The table as text, with a line that says what it is."""
    return f"{_what(importance)}\n{text_table(_columns(importance), _rows(importance))}"


def evaluation_page(result: EvaluationResult, metrics_table: str) -> str:
    """The HTML of an evaluation; ``metrics_table`` is its text."""
    names = ", ".join(model.checkpoint for model in result.models)
    parts = [f"<section><h2>Metrics</h2><pre>{escape(metrics_table)}</pre></section>"]
    for number, model in enumerate(result.models):
        if model.importance:
            title = "Importance of features" + f": {model.checkpoint}" * (len(result.models) > 1)
            parts.append(
                f"<section><h2>{escape(title)}</h2><p>{escape(_what(model.importance))}</p>"
                f"{charts_html([importance_chart(model.importance)], f'importance-{number}', 'wide')}"
                f"{html_table(_columns(model.importance), _rows(model.importance))}</section>"
            )
    summary = f"{escape(result.dataset)}, {escape(result.split)}"
    return page(names, "evaluation", summary=summary, content="".join(parts))


def _what(importance: Importance) -> str:
    return (
        f"what is lost where one feature's values are permuted, over {importance.rows:,} rows, "
        f"{importance.repeats} time{'s' * (importance.repeats != 1)} each"
    )


def _columns(importance: Importance) -> list[Column]:
    percent = f"{100 * importance.confidence:g}%"
    return [
        Column("feature", is_words=True),
        Column("AUC lost", "AUC as it is less AUC with the feature permuted, the mean over repeats"),
        Column(f"{percent} interval", "over rows and orders"),
        Column("log loss gained", "nats a row"),
        Column(f"{percent} interval", "over rows and orders"),
    ]


def _rows(importance: Importance) -> Rows:
    largest = max((each.auc_lost.value for each in importance.features), default=0.0) or math.nan
    return [
        [
            Cell(each.feature),
            Cell(_signed(each.auc_lost.value), each.auc_lost.value, each.auc_lost.value / largest),
            Cell(_bounds(each.auc_lost)),
            Cell(_signed(each.logloss_gained.value), each.logloss_gained.value),
            Cell(_bounds(each.logloss_gained)),
        ]
        for each in importance.features
    ]


def _signed(value: float) -> str:
    return NONE if math.isnan(value) else f"{value:+.5f}"


def _bounds(interval: Interval) -> str:
    return NONE if math.isnan(interval.low) else f"{interval.low:+.5f} to {interval.high:+.5f}"


def importance_chart(importance: Importance) -> Chart:
    """AUC lost by feature, with intervals, of those that matter most."""
    shown = importance.features[:MAX_BARS]
    axis = Axis(0, max(1, len(shown)), [(i + 0.5, _short(each.feature)) for i, each in enumerate(shown)])
    bounds = [bound for each in shown for bound in (each.auc_lost.low, each.auc_lost.high)]
    left_out = len(importance.features) - len(shown)
    note = f"{left_out} more in the table" if left_out else ""
    chart = Chart("AUC lost", axis, linear_axis([0.0, *bounds]), note=note, frame=WIDE)
    edges = [float(i) for i in range(len(shown) + 1)]
    heights = [each.auc_lost.value for each in shown]
    chart.bars(edges, heights, "second")
    for i, each in enumerate(shown):
        if not math.isnan(each.auc_lost.low):
            chart.error_bar(i + 0.5, each.auc_lost.low, each.auc_lost.high, "first")
    tips = [f"{each.feature}: {_signed(each.auc_lost.value)}, {_bounds(each.auc_lost)}" for each in shown]
    chart.bin_tips(edges, heights, tips)
    return chart


def _short(name: str) -> str:
    return name if len(name) <= 8 else f"{name[:7]}…"
