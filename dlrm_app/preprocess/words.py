"""Numbers as people read them."""

import math
from collections.abc import Sequence


def percent(share: float | None) -> str:
    """``42%``, ``4.2%`` or ``0.042%``: two digits that count."""
    if share is None or math.isnan(share):
        return "–"
    value = 100 * share
    if value == 0 or value >= 9.95:
        return f"{value:.0f}%"
    return f"{value:.{min(4, 1 - math.floor(math.log10(value)))}f}%" if value >= 0.0001 else "<0.0001%"


def short(value: float) -> str:
    """``950``, ``12.3k``, ``4.56M``: three digits that count."""
    for size, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"


def bytes_text(num_bytes: float) -> str:
    """``3.1 MB``."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes:.0f} B"


def duration(seconds: float) -> str:
    """``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def count(number: int, thing: str) -> str:
    """``1 problem``, ``2,000 problems``."""
    return f"{number:,} {thing}{'s' * (number != 1)}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of aligned columns, the first to the left and the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
