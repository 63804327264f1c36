"""A chart as inline SVG: marks drawn in data coordinates inside a frame with two axes.

Colours come from the page's style sheet by class, so that one chart serves the light and the dark scheme.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape

from dlrm_app.display.axis import Axis

WIDTH, HEIGHT = 400.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 12.0, 10.0, 40.0
Point = tuple[float, float]


class Chart:
    """Collects marks; ``svg`` gives the picture. ``summary`` says in words what it shows, for screen readers."""

    def __init__(self, x: Axis, y: Axis, summary: str) -> None:
        self._x, self._y, self._summary = x, y, summary
        self._marks: list[str] = []
        self._hits: list[str] = []

    def line(self, points: Iterable[Point], style: str) -> None:
        """A line through ``points``, broken where one is not finite."""
        for part in _finite_parts(points):
            path = "M" + "L".join(self._place(point) for point in part)
            self._marks.append(f'<path class="line {style}" d="{path}"/>')

    def dots(self, points: Iterable[Point], style: str) -> None:
        """A dot on each finite point."""
        for x, y in (point for point in points if all(map(math.isfinite, point))):
            self._marks.append(
                f'<circle class="dot {style}" cx="{self._at_x(x):.1f}" cy="{self._at_y(y):.1f}" r="3"/>'
            )

    def tips(self, points: Iterable[Point], texts: Iterable[str], style: str) -> None:
        """What the page's script shows when a pointer comes near a point."""
        for (x, y), text in zip(points, texts, strict=True):
            if math.isfinite(x) and math.isfinite(y):
                self._hits.append(
                    f'<circle class="hit {style}" cx="{self._at_x(x):.1f}" cy="{self._at_y(y):.1f}" r="4" '
                    f'data-tip="{escape(text)}"/>'
                )

    def error_bar(self, x: float, low: float, high: float, style: str) -> None:
        """A vertical bar at ``x``."""
        place = f"{self._at_x(x):.1f}"
        self._marks.append(
            f'<path class="error {style}" d="M{place} {self._at_y(low):.1f}V{self._at_y(high):.1f}"/>'
        )

    def steps(self, edges: Sequence[float], heights: Sequence[float], style: str) -> None:
        """A filled outline: ``heights[i]`` between ``edges[i]`` and ``edges[i + 1]``."""
        path = f"M{self._at_x(edges[0]):.1f} {self._at_y(0):.1f}"
        for right, height in zip(edges[1:], heights, strict=True):
            path += f"V{self._at_y(height):.1f}H{self._at_x(right):.1f}"
        self._marks.append(f'<path class="area {style}" d="{path}V{self._at_y(0):.1f}Z"/>')

    def level(self, y: float, label: str) -> None:
        """A dashed horizontal line with its name at the left end."""
        at = self._at_y(y)
        self._marks.append(f'<path class="guide" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        above = at - 5 if at > TOP + 14 else at + 13
        self._marks.append(f'<text class="note" x="{LEFT + 4}" y="{above:.1f}">{escape(label)}</text>')

    def guide(self, start: Point, end: Point) -> None:
        """A dashed line between two points."""
        self._marks.append(f'<path class="guide" d="M{self._place(start)}L{self._place(end)}"/>')

    def svg(self, clip_name: str) -> str:
        """The picture. ``clip_name`` must be unique on the page."""
        inside = f'x="{LEFT - 5}" y="{TOP - 5}" width="{WIDTH - LEFT - RIGHT + 10}" height="{HEIGHT - TOP - BOTTOM + 10}"'
        return (
            f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" aria-label="{escape(self._summary)}">'
            f'<clipPath id="{clip_name}"><rect {inside}/></clipPath>'
            f'{self._grid()}<g clip-path="url(#{clip_name})">{"".join(self._marks)}</g>{"".join(self._hits)}</svg>'
        )

    def _grid(self) -> str:
        parts = []
        for value, label in self._y.ticks:
            at = self._at_y(value)
            parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
            parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{escape(label)}</text>')
        bottom = HEIGHT - BOTTOM
        for value, label in self._x.ticks:
            at = self._at_x(value)
            parts.append(f'<path class="tick" d="M{at:.1f} {bottom}v4"/>')
            parts.append(f'<text x="{at:.1f}" y="{bottom + 17}" text-anchor="middle">{escape(label)}</text>')
        parts.append(f'<path class="base" d="M{LEFT} {bottom}H{WIDTH - RIGHT}"/>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(
            f'<text class="title" x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">{escape(self._x.title)}</text>'
        )
        return "".join(parts)

    def _place(self, point: Point) -> str:
        return f"{self._at_x(point[0]):.1f} {self._at_y(point[1]):.1f}"

    def _at_x(self, value: float) -> float:
        return LEFT + self._x.share(value) * (WIDTH - LEFT - RIGHT)

    def _at_y(self, value: float) -> float:
        return HEIGHT - BOTTOM - self._y.share(value) * (HEIGHT - TOP - BOTTOM)


def _finite_parts(points: Iterable[Point]) -> list[list[Point]]:
    parts: list[list[Point]] = [[]]
    for point in points:
        if all(map(math.isfinite, point)):
            parts[-1].append(point)
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if len(part) > 1]
