"""The tables' health at the last evaluation: one row a table, bars in the cells."""

import math
from html import escape
from typing import Any

from dlrm_app.display.html_table import bar, table
from dlrm_app.display.numbers import data, fixed
from dlrm_app.training.report.run_record import RunRecord

EXPLAINED = {
    "rows": "rows of the table",
    "trained": "share of the rows whose weights have changed since the start",
    "norm": "Frobenius norm of the weights",
    "growth": "norm over its first value; the bar is relative to the table that grew most",
    "missing": "share of the rows evaluated whose value is missing",
    "rare": "share of the lookups for values without an id of their own: rare or new ones",
    "collisions": "share of the distinct raw values that share their id with another",
    "top 1": "share of the lookups that go to the hottest row",
    "top 10": "share of the lookups that go to the ten hottest rows",
}


def health_section(record: RunRecord) -> str:
    """The latest health event as a table; empty without one."""
    events = record.of_kind("health")
    if not events:
        return ""
    event = events[-1]
    tables: dict[str, dict[str, Any]] = event["tables"]
    growths = [values["norm_growth"] or 0.0 for values in tables.values()]
    most = max([growth for growth in growths if math.isfinite(growth)], default=0.0) or 1.0
    rows = [[escape(name), *_cells(values, most)] for name, values in tables.items()]
    return (
        f"<h2>Tables</h2><p>Weights after step {event['step']:,}; lookups by the rows of {escape(event['split'])}.</p>"
        + table(["table", *EXPLAINED], rows, EXPLAINED)
    )


def _cells(values: dict[str, Any], most: float) -> list[str]:
    growth = values["norm_growth"]
    growth_cell = '<span class="none">–</span>'
    if growth is not None:
        width = 100 * growth / most if math.isfinite(growth) else 100.0
        text = f"×{fixed(growth, 2)}"
        growth_cell = f'<span class="bar" style="--share:{width:.2f}%">{data(growth, text)}</span>'
    return [
        data(values["rows"], f"{values['rows']:,}"),
        bar(values["rows_touched"]),
        data(values["weight_norm"], fixed(values["weight_norm"], 2)),
        growth_cell,
        *(
            bar(values[key])
            for key in ("missing_rate", "rare_rate", "collision_rate", "top1_share", "top10_share")
        ),
    ]
