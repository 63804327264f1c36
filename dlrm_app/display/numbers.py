"""Numbers as people read them, and as a program finds them again in a page."""

import math
from html import escape

NONE = "–"


def fixed(value: float | None, decimals: int) -> str:
    """``0.76543``; a dash for what is undefined."""
    return NONE if value is None or math.isnan(value) else f"{value:,.{decimals}f}"


def percent(share: float | None) -> str:
    """A share as ``42%``, ``4.2%`` or ``0.042%``: two digits that count."""
    if share is None or math.isnan(share):
        return NONE
    value = 100 * share
    if value == 0 or abs(value) >= 9.95:
        return f"{value:.0f}%"
    decimals = min(4, 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}%" if abs(value) >= 0.0001 else "<0.0001%"


def percent_tick(share: float, decimals: int) -> str:
    """A tick's share, as all ticks of an axis with ``decimals`` (of the share) are written."""
    return f"{100 * share:.{max(0, decimals - 2)}f}%"


def short(value: float | None) -> str:
    """``950``, ``12.3k``, ``4.56M``, ``1.2B``: three digits that count."""
    if value is None or math.isnan(value):
        return NONE
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


def data(value: float | None, text: str) -> str:
    """``text`` that carries the full number in its ``value``."""
    return f'<data value="{"" if value is None else repr(value)}">{escape(text)}</data>'
