"""Many tables in few lines: those that are alike stand together."""

import re
from collections.abc import Sequence

from dlrm_app.tables.specs import Table

Shape = tuple[int, int, str, int]


def shape(table: Table) -> Shape:
    """Rows, width, precision and number of features."""
    return table.rows, table.dim, table.data_type, len(table.features)


def fold(tables: Sequence[Table]) -> list[tuple[str, list[Table]]]:
    """Tables of one shape under one label, in the order of the first.

    A label is a table's name, or what the names have in common and how many there are: ``t_1m_* (19)``.
    """
    groups: dict[Shape, list[Table]] = {}
    for table in tables:
        groups.setdefault(shape(table), []).append(table)
    return [(label(alike), alike) for alike in groups.values()]


def label(tables: Sequence[Table]) -> str:
    """One name, or the stem of many with their number."""
    first = tables[0].name
    if len(tables) == 1:
        return first
    stems = {re.sub(r"\d+$", "", table.name) for table in tables}
    stem = f"{stems.pop()}*" if len(stems) == 1 else f"{first}, …"
    return f"{stem} ({len(tables)})"
