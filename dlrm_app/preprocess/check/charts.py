"""Small charts as inline SVG that stretches to the room it has; every text stands beside it, in HTML.

Coordinates within are shares of 0 to 1, y upwards, drawn into a box of 100 by 100.
"""

from collections.abc import Sequence
from html import escape

Point = tuple[float, float]


def svg(marks: str, summary: str, tall: bool = False) -> str:
    """``summary`` says in words what there is to see."""
    size = ' class="tall"' * tall
    return (
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none"{size} role="img" '
        f'aria-label="{escape(summary)}">{marks}</svg>'
    )


def line(points: Sequence[Point], style: str = "") -> str:
    return f'<path class="line {style}" d="{_path(points)}"/>'


def area(points: Sequence[Point], style: str = "") -> str:
    """What lies below a line."""
    closed = [(points[0][0], 0.0), *points, (points[-1][0], 0.0)]
    return f'<path class="area {style}" d="{_path(closed)}Z"/>'


def band(points: Sequence[tuple[float, float, float]], style: str = "") -> str:
    """What lies between (x, low, high)."""
    outline = [(x, high) for x, _, high in points] + [(x, low) for x, low, _ in reversed(points)]
    return f'<path class="band {style}" d="{_path(outline)}Z"/>'


def level(y: float, style: str = "grid") -> str:
    """A horizontal line."""
    return f'<path class="{style}" d="{_path([(0, y), (1, y)])}"/>'


def bars(heights: Sequence[float], texts: Sequence[str]) -> str:
    """Upright bars side by side; a pointer above one shows its text."""
    width = 100 / max(len(heights), 1)
    # a height of half a pixel at least, so that a few values among millions are seen
    return '<g class="bars">' + "".join(
        f'<rect x="{place * width:.2f}" y="{100 - max(100 * height, 0.7):.2f}" width="{0.92 * width:.2f}" '
        f'height="{max(100 * height, 0.7):.2f}"><title>{escape(text)}</title></rect>'
        for place, (height, text) in enumerate(zip(heights, texts, strict=True))
        if height > 0
    ) + "</g>"  # fmt: skip


def framed(chart: str, ticks: Sequence[str], ends: Sequence[str]) -> str:
    """``ticks`` evenly from the bottom to the top at its left, ``ends`` from left to right below."""
    left = "".join(f"<span>{escape(tick)}</span>" for tick in ticks)
    return f'<div class="frame"><div class="ticks">{left}</div>{chart}{row(ends)}</div>'


def row(ends: Sequence[str]) -> str:
    """Texts spread from left to right."""
    return f'<div class="ends">{"".join(f"<span>{escape(end)}</span>" for end in ends)}</div>'


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{100 * x:.2f} {100 - 100 * y:.2f}" for x, y in points)
