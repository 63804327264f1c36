"""An evaluation as a page: metrics, and the importance of features as a table and a chart."""

import math
from html import escape
from pathlib import Path

from dlrm_app.evaluation.result import (
    EvaluationResult,
    Importance,
    bounds,
    format_result,
    importance_table,
    signed,
)
from dlrm_app.files import explained_disk_errors, write_text
from dlrm_app.reports.chart import WIDE, Axis, Chart, charts_html, linear_axis
from dlrm_app.reports.page import page
from dlrm_app.table import html_table

MAX_BARS = 20
"""Features in the chart, whose names stand side by side below it."""


def write_evaluation(result: EvaluationResult, path: Path, are_averaged: bool) -> None:
    """Writes the page of ``result`` to ``path``. Raises DlrmError where the disk refuses it."""
    names = ", ".join(model.checkpoint for model in result.models)
    metrics = escape(format_result(result, are_averaged))
    sections = [f"<h2>Metrics</h2><pre>{metrics}</pre>"]
    for number, model in enumerate(result.models):
        if model.importance:
            title = "Importance of features" + f": {model.checkpoint}" * (len(result.models) > 1)
            sections.append(
                f"<h2>{escape(title)}</h2><p>{escape(model.importance.title)}</p>"
                f"{charts_html([importance_chart(model.importance)], f'importance-{number}', 'wide')}"
                f"{html_table(*importance_table(model.importance))}"
            )
    summary = f"{escape(result.dataset)}, {escape(result.split)}"
    with explained_disk_errors(path, "then evaluate again"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, page(names, "evaluation", summary=summary, sections=sections))


def importance_chart(importance: Importance) -> Chart:
    """AUC lost by feature, with intervals, of those that matter most."""
    shown = importance.features[:MAX_BARS]
    axis = Axis(0, max(1, len(shown)), [(i + 0.5, _short(each.feature)) for i, each in enumerate(shown)])
    ends = [end for each in shown for end in (each.auc_lost.low, each.auc_lost.high)]
    left_out = len(importance.features) - len(shown)
    note = f"{left_out} more in the table" if left_out else ""
    chart = Chart("AUC lost", axis, linear_axis([0.0, *ends]), note=note, frame=WIDE)
    edges = [float(i) for i in range(len(shown) + 1)]
    heights = [each.auc_lost.value for each in shown]
    chart.bars(edges, heights, "second")
    for i, each in enumerate(shown):
        if not math.isnan(each.auc_lost.low):
            chart.error_bar(i + 0.5, each.auc_lost.low, each.auc_lost.high, "first")
    tips = [f"{each.feature}: {signed(each.auc_lost.value)}, {bounds(each.auc_lost)}" for each in shown]
    chart.bin_tips(edges, heights, tips)
    return chart


def _short(name: str) -> str:
    return name if len(name) <= 8 else f"{name[:7]}…"
