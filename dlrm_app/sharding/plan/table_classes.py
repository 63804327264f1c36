"""Many tables in few lines: those that are alike stand together."""

import re
from collections.abc import Sequence

from dlrm_app.tables.specs import Table


def fold(tables: Sequence[Table]) -> list[tuple[str, list[Table]]]:
    """Tables of one shape (rows, width, precision, number of features) under one label, in the order of the first.

    A label is a table's name, or what the names have in common and how many there are: ``t_1m_* (19)``.
    """
    groups: dict[tuple[int, int, str, int], list[Table]] = {}
    for table in tables:
        shape = table.rows, table.dim, table.data_type, len(table.features)
        groups.setdefault(shape, []).append(table)
    return [(label(members), members) for members in groups.values()]


def label(members: Sequence[Table]) -> str:
    """One name, or the stem of many with their number."""
    first = members[0].name
    if len(members) == 1:
        return first
    stems = {re.sub(r"\d+$", "", table.name) for table in members}
    stem = f"{stems.pop()}*" if len(stems) == 1 else f"{first}, …"
    return f"{stem} ({len(members)})"


def size_text(num_bytes: float) -> str:
    """``1,234.5 GiB``, ``12 MiB``, ``0``: two digits that count, and one after the point from 10 GiB on."""
    if num_bytes >= 9.95 * 2**30:
        return f"{num_bytes / 2**30:,.1f} GiB"
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if num_bytes >= unit:
            value = num_bytes / unit
            return f"{value:.0f} {name}" if value >= 9.95 else f"{value:.1f} {name}"
    return f"{num_bytes:.0f} B" if num_bytes > 0 else "0"
