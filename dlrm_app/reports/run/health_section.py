"""The tables' health at the last evaluation: one row a table, bars in the cells."""

import math
from html import escape

from dlrm_app.reports.run.run_record import RunRecord
from dlrm_app.table import Cell, Column, Rows, html_table, integer, share
from dlrm_app.text import NONE, fixed

COLUMNS = (
    "table",
    Column("rows", "rows of the table"),
    Column("trained", "share of the rows whose weights have changed since the start"),
    Column("norm", "Frobenius norm of the weights"),
    Column("growth", "norm over its first value; the bar is relative to the table that grew most"),
    Column("missing", "share of the rows evaluated whose value is missing"),
    Column("rare", "share of the lookups for values without an id of their own: rare or new ones"),
    Column("collisions", "share of the distinct raw values that share their id with another"),
    Column("top 1", "share of the lookups that go to the hottest row"),
    Column("top 10", "share of the lookups that go to the ten hottest rows"),
)


def health_section(record: RunRecord) -> str:
    """The latest health event as a table; empty without one."""
    if not record.health:
        return ""
    event = record.health[-1]
    growths = [values["norm_growth"] or 0.0 for values in event.tables.values()]
    most = max([growth for growth in growths if math.isfinite(growth)], default=0.0) or 1.0
    rows: Rows = [[name, *_cells(values, most)] for name, values in event.tables.items()]
    sentence = f"Weights after step {event.step:,}; lookups by the rows of {escape(event.split)}."
    return f"<h2>Tables</h2><p>{sentence}</p>{html_table(COLUMNS, rows)}"


def _cells(values: dict[str, float | None], most_growth: float) -> list[Cell]:
    growth = values["norm_growth"]
    return [
        integer(values["rows"]),
        share(values["rows_touched"]),
        Cell(fixed(values["weight_norm"], 2), values["weight_norm"]),
        Cell(NONE) if growth is None else Cell(f"×{fixed(growth, 2)}", growth, growth / most_growth),
        *(
            share(values[key])
            for key in ("missing_rate", "rare_rate", "collision_rate", "top1_share", "top10_share")
        ),
    ]
