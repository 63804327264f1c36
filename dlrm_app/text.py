"""Formats texts: lists, numbers, JSON, URLs without their credentials."""

import json
import math
import re
from collections.abc import Mapping, Sequence


def listed(names: Sequence[object], most: int = 3) -> str:
    """``a, b, c and 7 more``: the first ``most`` names, and the number of others."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def first_lines(lines: Sequence[str], most: int) -> list[str]:
    """The first ``most`` lines, and a line that counts the others."""
    return [*lines[:most], *([f"… and {len(lines) - most:,} more"] if len(lines) > most else [])]


def bullets(lines: Sequence[str], most: int | None = None) -> str:
    """A list with a bullet for each of the first ``most`` lines."""
    return "\n".join(f"  - {line}" for line in first_lines(lines, len(lines) if most is None else most))


def json_text(value: object, indent: int | None = None) -> str:
    """``value`` as JSON, which has no NaN and no infinity: they are written as null.

    All JSON that the commands write is made here.
    """
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_without_nan(value), indent=indent, ensure_ascii=False, allow_nan=False)


MAX_BRIEF = 60


def in_brief(value: object) -> str:
    """``value`` as one short line of JSON."""
    text = json_text(value)
    return text if len(text) <= MAX_BRIEF else f"{text[:MAX_BRIEF]}…"


def _without_nan(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _without_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


NONE = "–"
"""The text of an undefined or unknown value."""


def fixed(value: float | None, decimals: int) -> str:
    """A number such as ``0.76543``; a dash if it is undefined."""
    return NONE if value is None or math.isnan(value) else f"{value:,.{decimals}f}"


def percent(share: float | None) -> str:
    """A share as ``42%``, ``4.2%`` or ``0.042%``: two significant digits."""
    if share is None or math.isnan(share):
        return NONE
    value = 100 * share
    if value == 0 or abs(value) >= 9.95:
        return f"{value:.0f}%"
    decimals = min(4, 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}%" if abs(value) >= 0.0001 else "<0.0001%"


def short(value: float | None) -> str:
    """A number as ``950``, ``12.3k``, ``4.56M`` or ``1.2B``: three significant digits."""
    if value is None or math.isnan(value):
        return NONE
    for size, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"


def bytes_text(num_bytes: float) -> str:
    """A size such as ``3.1 MB``, in powers of ten, as for files and disks."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes:.0f} B"


def memory_text(num_bytes: float) -> str:
    """A size such as ``1,234.5 GiB``, ``12 MiB`` or ``0``, in powers of two, as for memory; two significant digits."""
    if num_bytes >= 9.95 * 2**30:
        return f"{num_bytes / 2**30:,.1f} GiB"
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if num_bytes >= unit:
            value = num_bytes / unit
            return f"{value:.0f} {name}" if value >= 9.95 else f"{value:.1f} {name}"
    return f"{num_bytes:.0f} B" if num_bytes > 0 else "0"


def duration(seconds: float) -> str:
    """A time such as ``4.2 s``, ``42 s``, ``3 min 20 s``, ``5 h 07 min`` or ``2 d 03 h``: at most two units."""
    whole = round(seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def count(number: int, noun: str) -> str:
    """A number with its noun: ``1 problem``, ``2,000 problems``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


_LOGIN = re.compile(
    r"""(?P<scheme>\b[a-z][a-z0-9+.-]*://)(?!\[?[\w.:-]*:\d+\]?(?:/|$))[^\s/:@'",]*:[^\s@'"]+@"""
    r"""|(?P<web>\bhttps?://)[^\s/:@'",]+@""",
    re.IGNORECASE,
)
_QUERY = re.compile(
    r"""(?P<url>\b(?P<scheme>[a-z][a-z0-9+.-]*)://[^\s?'"]*)\?(?P<query>[\w.~%-]+=[^\s'"]*)""", re.IGNORECASE
)
_HARMLESS = ("delta", "iceberg")
"""Schemes whose queries choose what to read."""


def without_credentials(text: str) -> str:
    """``text`` with its URLs made safe to show and store: without user:password@ and without tokens after a ?."""
    text = _LOGIN.sub(lambda match: match["scheme"] or match["web"], text)
    return _QUERY.sub(lambda match: match[0] if match["scheme"].lower() in _HARMLESS else match["url"], text)
